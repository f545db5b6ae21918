//! One connection, in a thread of its own: whoever evaluates a policy for it keeps nobody else waiting.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::body::Body;

use super::listen::{Caller, Raw};
use super::talk::Talk;
use super::{Shared, count};
use crate::frame::{FrameCodec, PATH};
use crate::transport::{self, Io, first};

/// Serves `raw` until one of both sides ends it.
pub(super) fn serve(shared: &Arc<Shared>, caller: &Arc<Caller>, raw: Raw) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let greeted = match runtime {
        Ok(runtime) => {
            let greeted = runtime.block_on(async {
                // Until it is greeted, it may also be sent away.
                let greeting = timeout(shared.choices.greeting, caller.sent_away.notified());
                let mut greeting = pin!(greeting);
                match first(pin!(open(shared, raw)), greeting.as_mut()).await {
                    Ok(Ok(stream)) => talk(shared, caller, stream, greeting).await,
                    Ok(Err(_)) | Err(_) => false,
                }
            });
            runtime.shutdown_background();
            greeted
        }
        Err(_) => false,
    };
    if !greeted {
        count(&shared.counters.refused);
    }
}

/// The stream of bytes, after the other side has shown who it is, where that is asked for.
async fn open(shared: &Shared, raw: Raw) -> io::Result<Box<dyn Io>> {
    let stream: Box<dyn Io> = match raw {
        Raw::Unix(stream, user) => {
            let stream = UnixStream::from_std(stream)?;
            let peer = stream.peer_cred()?.uid();
            if peer != user && peer != 0 {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            Box::new(stream)
        }
        Raw::Tcp(stream) => {
            // A machine that vanishes closes nothing.
            let alive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(60));
            socket2::SockRef::from(&stream).set_tcp_keepalive(&alive)?;
            stream.set_nodelay(true)?;
            Box::new(TcpStream::from_std(stream)?)
        }
    };
    match &shared.tls {
        None => Ok(stream),
        Some(config) => {
            let accepting = TlsAcceptor::from(Arc::clone(config)).accept(stream);
            match accepting.into_fallible().await {
                Ok(stream) => Ok(Box::new(stream)),
                Err((error, mut stream)) => {
                    // What says why is lost where a stream is closed with bytes unread.
                    let _ = stream.shutdown().await;
                    let mut rest = [0; 1024];
                    while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
                    Err(error)
                }
            }
        }
    }
}

/// Carries one connection to its end; whether a client was let in.
async fn talk(
    shared: &Arc<Shared>,
    caller: &Arc<Caller>,
    stream: Box<dyn Io>,
    greeting: Pin<&mut impl Future>,
) -> bool {
    /// How long a connection that is to end may take to say so.
    const PARTING: Duration = Duration::from_secs(1);
    let (at, who) = (Arc::clone(shared), Arc::clone(caller));
    let service = service_fn(move |request| answer(Arc::clone(&at), Arc::clone(&who), request));
    let connection = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(2)
        .max_header_list_size(8 << 10)
        .initial_stream_window_size(transport::STREAM_WINDOW)
        .initial_connection_window_size(transport::CONNECTION_WINDOW)
        .max_frame_size(transport::MAX_FRAME)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut greeted = pin!(caller.greeted.notified());
    let over = first(connection.as_mut(), greeting);
    if first(greeted.as_mut(), pin!(over)).await.is_err() {
        // It has ended, perhaps with a greeting as its last words, or said nothing that lets it in.
        return first(greeted, pin!(std::future::ready(()))).await.is_ok();
    }
    let mut stop = shared.stop.subscribe();
    let stopped = stop.wait_for(|stop| *stop);
    if first(connection.as_mut(), pin!(stopped)).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(PARTING, connection).await;
    }
    true
}

/// Answers one call of the service.
async fn answer(
    shared: Arc<Shared>,
    caller: Arc<Caller>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    if let Some(token) = &shared.choices.token
        && !token.is_in(request.headers())
    {
        let status = Status::unauthenticated("expected a valid token, got none or another");
        return Ok(status.into_http());
    }
    if request.uri().path() != PATH {
        return Ok(Status::unimplemented(format!("expected {PATH}")).into_http());
    }
    let limit = shared.choices.limits.message;
    let mut rpc = tonic::server::Grpc::new(FrameCodec)
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit);
    Ok(rpc.streaming(Talk::new(shared, caller), request).await)
}
