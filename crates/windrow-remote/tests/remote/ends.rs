//! One side goes: the other is told, and nothing hangs.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tensordict::DType;
use windrow_env::{EnvSpec, Spec};
use windrow_policy::{Binding, Policy, PolicyRecipe};
use windrow_remote::{Address, Remote, RemoteError, RemoteServer};

use crate::tools::{Seat, by_ids, net, patiently, serve, token};

/// Longer than anything takes here, and shorter than a call may by default.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn the_end_of_the_server_is_an_error_of_its_clients() {
    let mut server = serve(net(1));
    let mut seat = Seat::new(
        patiently(&server)
            .timeout(Duration::from_secs(2))
            .policy()
            .unwrap(),
        0,
        1,
    )
    .unwrap();
    seat.act(0).unwrap();
    let began = Instant::now();
    server.shutdown();
    for frame in 0..2 {
        let error = seat.act(frame).unwrap_err().to_string();
        assert!(
            error.contains("has ended") || error.contains("no answer from"),
            "{error}"
        );
    }
    assert!(began.elapsed() < SOON);
    let error = server.update_policy_weights(&net(2).weights());
    drop(server);
    let _ = error;
}

#[test]
fn a_server_that_ends_frees_those_that_wait_also_where_the_policy_hangs() {
    let (inside, free) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (at, until) = (Arc::clone(&inside), Arc::clone(&free));
    let mut server = serve(by_ids(move |_, _| {
        at.wait();
        until.wait();
        Ok(())
    }));
    let remote = patiently(&server).timeout(Duration::from_secs(5));
    let waiting = std::thread::spawn(move || {
        let mut seat = Seat::new(remote.policy().unwrap(), 0, 1).unwrap();
        seat.act(0).map(|_| ())
    });
    inside.wait();
    let began = Instant::now();
    server.shutdown();
    assert!(began.elapsed() < SOON);
    assert!(waiting.join().unwrap().is_err());
    free.wait();
}

#[test]
fn a_server_that_was_started_again_says_that_it_knows_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::unix(folder.path().join("policy.sock"));
    let start = || {
        RemoteServer::builder(PolicyRecipe::of(net(1)))
            .address(address.clone())
            .start()
            .unwrap()
    };
    let mut server = start();
    let mut weights = Remote::new(address.clone()).weights().unwrap();
    let mut seat = Seat::new(Remote::new(address.clone()).policy().unwrap(), 0, 2).unwrap();
    assert_eq!(weights.publish(&net(2).weights()).unwrap(), 1);
    seat.act(0).unwrap();
    server.shutdown();
    drop(server);
    let server = start();
    // The first call may still hear that the old server has ended; one of them hears of the new
    // one.
    let error = weights.publish(&net(2).weights()).unwrap_err();
    assert!(
        matches!(
            error,
            RemoteError::Forgotten { .. } | RemoteError::Ended { .. }
        ),
        "{error}"
    );
    assert!(seat.act(1).is_err());
    assert_eq!(server.version(), 0);
    assert_eq!(weights.publish(&net(3).weights()).unwrap(), 1);
    let mut here = Seat::new(net(1), 0, 2).unwrap();
    here.policy.load(&net(3).weights()).unwrap();
    here.envs = seat.envs.clone();
    assert_eq!(
        seat.act(2).unwrap(),
        here.act(2).unwrap(),
        "it is bound anew"
    );
    assert_eq!(seat.policy.version(), Some(1));
}

#[test]
fn clients_that_go_without_a_word_leave_the_server_to_others() {
    let recipe = PolicyRecipe::of(net(1));
    let server = RemoteServer::builder(recipe)
        .address(Address::loopback(0))
        .token(token())
        .start()
        .unwrap();
    let Address::Tcp { host, port } = server.address().clone() else {
        panic!("expected a port");
    };
    let mut gone = Vec::new();
    for bytes in [
        &b""[..],
        b"windrow\n\x03\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 300],
    ] {
        let mut stream = std::net::TcpStream::connect((host.as_str(), port)).unwrap();
        stream.write_all(bytes).unwrap();
        gone.push(stream);
    }
    let mut seat = Seat::new(patiently(&server).token(token()).policy().unwrap(), 0, 1).unwrap();
    seat.act(0).unwrap();
    drop(gone);
    seat.act(1).unwrap();
    assert_eq!(server.stats().accepted, 1);
}

#[test]
fn those_that_say_nothing_keep_no_client_out() {
    let server = RemoteServer::builder(PolicyRecipe::of(net(1)))
        .address(Address::loopback(0))
        .token(token())
        .max_connections(2)
        .greeting(Duration::from_secs(600))
        .start()
        .unwrap();
    let Address::Tcp { host, port } = server.address().clone() else {
        panic!("expected a port");
    };
    let connect = || std::net::TcpStream::connect((host.as_str(), port)).unwrap();
    let _silent: Vec<_> = (0..200).map(|_| connect()).collect();
    let remote = patiently(&server)
        .token(token())
        .silence(Duration::from_secs(600));
    let mut seats = [0, 1].map(|id| Seat::new(remote.policy().unwrap(), id, 1).unwrap());
    let _more: Vec<_> = (0..200).map(|_| connect()).collect();
    for seat in &mut seats {
        seat.act(0).unwrap();
    }
    drop(seats);
    Seat::new(remote.policy().unwrap(), 2, 1).unwrap();
}

#[test]
fn a_first_client_with_a_wrong_environment_fails_alone() {
    let server = serve(net(1));
    let mut wrong = patiently(&server).policy().unwrap();
    let other = EnvSpec::new("Other", Spec::unbounded(DType::F32, [3]), Spec::discrete(2));
    for _ in 0..2 {
        let error = wrong.bind(&Binding::new(&other, 1)).unwrap_err();
        assert!(!error.to_string().contains("ended"), "{error}");
    }
    let mut right = Seat::new(patiently(&server).policy().unwrap(), 0, 8).unwrap();
    let mut here = Seat::new(net(1), 0, 8).unwrap();
    assert_eq!(right.act(0).unwrap(), here.act(0).unwrap());
    assert!(wrong.bind(&Binding::new(&other, 1)).is_err());
    right.act(1).unwrap();
}

#[test]
fn a_server_listens_where_only_its_user_can_connect() {
    let servers = [(); 2].map(|()| serve(net(1)));
    let paths = servers.each_ref().map(|server| match server.address() {
        Address::Unix(path) => path.clone(),
        address => panic!("expected a socket, got {address}"),
    });
    for path in &paths {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    drop(servers);
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let recipe = PolicyRecipe::of(net(1));
    let server = RemoteServer::builder(recipe)
        .address(Address::loopback(0))
        .token(token())
        .greeting(Duration::from_millis(50))
        .start()
        .unwrap();
    let Address::Tcp { host, port } = server.address().clone() else {
        panic!("expected a port");
    };
    let mut stream = std::net::TcpStream::connect((host.as_str(), port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // It has not lost the others.
    Seat::new(patiently(&server).token(token()).policy().unwrap(), 0, 1)
        .unwrap()
        .act(0)
        .unwrap();
}

#[test]
fn a_server_that_says_nothing_is_an_error_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let remote = Remote::new(Address::unix(&path))
        .timeout(Duration::from_millis(200))
        .silence(Duration::from_millis(50));
    let began = Instant::now();
    let error = remote.weights().unwrap().newest(0).unwrap_err();
    assert!(matches!(error, RemoteError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("silent.sock"), "{error}");
    let nobody =
        Remote::new(Address::unix(folder.path().join("nobody"))).timeout(Duration::from_millis(50));
    let error = nobody.weights().unwrap().newest(0).unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    assert!(began.elapsed() < SOON);
}

#[test]
fn a_socket_is_its_user_s_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.sock");
    let start = || {
        RemoteServer::builder(PolicyRecipe::of(net(1)))
            .address(Address::unix(&path))
            .start()
    };
    // As a server that was killed leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert!(UnixStream::connect(&path).is_err());
    let server = start().unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Seat::new(patiently(&server).policy().unwrap(), 0, 3)
        .unwrap()
        .act(0)
        .unwrap();
    assert!(
        matches!(start(), Err(RemoteError::Listen { .. })),
        "another server is there"
    );
    Seat::new(patiently(&server).policy().unwrap(), 0, 3)
        .unwrap()
        .act(0)
        .unwrap();
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(start(), Err(RemoteError::Listen { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}
