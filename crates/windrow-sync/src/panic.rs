use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`, usually code of a user. What a panic leaves half done is not to be used again.
///
/// # Errors
/// The message of a panic.
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "with a payload that is not a string".to_owned())
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::catch_panic;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".into())
        );
        let with_number = catch_panic(|| panic!("number {}", 7));
        assert_eq!(with_number, Err::<(), _>("number 7".into()));
        let other = catch_panic(|| panic_any(7_u8));
        assert_eq!(
            other,
            Err::<(), _>("with a payload that is not a string".into())
        );
    }
}
