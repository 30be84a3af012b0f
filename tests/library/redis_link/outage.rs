//! Servers that lose their data, hang, stop and recover.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::redis_link::ports::free_port;
use crate::redis_link::server::Server;
use crate::redis_link::{COUNT, Caller};
use tollgate::redis_client::Credentials;
use tollgate::store::shared::link::{CallError, Link, Script, Scripts, Servers};

#[tokio::test]
async fn a_script_that_the_server_forgot_is_told_again() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    assert_eq!(caller.count("a").await, Ok(2));
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(caller.count("a").await, Ok(3));
}

#[tokio::test]
async fn the_text_of_a_script_is_sent_once_to_a_server_that_forgot_it() {
    let server = Server::start();
    let caller = Arc::new(Caller::to(server.port));
    for round in 1..=5 {
        server.command(&["SCRIPT", "FLUSH"]);
        let calls: tokio::task::JoinSet<_> = (0..200)
            .map(|_| {
                let caller = Arc::clone(&caller);
                async move { caller.count("a").await }
            })
            .collect();
        assert!(calls.join_all().await.iter().all(Result::is_ok));
        let told = server.command(&["INFO", "commandstats"]);
        assert!(told.contains(&format!("cmdstat_eval:calls={round},")), "{told}");
    }
}

#[tokio::test]
async fn a_server_that_was_away_is_found_again() {
    let port = free_port();
    let caller = Caller::to(port);
    let away = caller.count("a").await;
    assert!(matches!(away, Err(CallError::Unreachable(_))), "{away:?}");
    for _ in 0..3 {
        let server = Server::start_on(port, &[]);
        assert_eq!(caller.count_again("a").await, 1);
        server.signal("KILL");
        let gone = tokio::time::timeout(crate::redis_link::server::PATIENCE, async {
            while caller.count("a").await.is_ok() {}
        });
        gone.await.expect("an error");
    }
}

#[tokio::test]
async fn callers_of_a_hanging_server_fail_when_it_is_given_up() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    server.signal("STOP");
    let calls = async { tokio::join!(caller.count("a"), caller.count("b"), caller.count("c")) };
    let give_up = async {
        tokio::task::yield_now().await;
        caller.link.close(0);
    };
    let ((a, b, c), ()) = tokio::join!(calls, give_up);
    assert!(a.is_err() && b.is_err() && c.is_err(), "{a:?} {b:?} {c:?}");
    server.signal("CONT");
    assert!(caller.count_again("d").await >= 1);
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_any_more_is_cut() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    server.signal("STOP");
    let (a, b) = tokio::join!(caller.count("a"), caller.count("b"));
    assert!(matches!((&a, &b), (Err(CallError::Broken(_)), Err(CallError::Broken(_)))), "{a:?} {b:?}");
    server.signal("CONT");
    assert!(caller.count_again("c").await >= 1);
}

#[tokio::test]
async fn a_connection_on_which_something_comes_stays() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    let before = server.clients();
    // for longer than the longest silence of a connection
    let mut beats = tokio::time::interval(Duration::from_millis(25));
    for number in 2..=60 {
        drop(tokio::time::timeout(Duration::ZERO, caller.count("b")).await);
        beats.tick().await;
        assert_eq!(caller.count("a").await, Ok(number));
    }
    assert_eq!(server.clients(), before);
}

#[tokio::test]
async fn a_server_that_may_only_be_read_is_left() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    let before = server.clients();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = caller.count("a").await;
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(caller.count_again("a").await, 2);
    assert_ne!(server.clients(), before, "by another connection");
}

#[tokio::test]
async fn calls_that_nobody_waits_for_any_more_leave_the_others_their_answers() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    for round in 0..200 {
        let (gone, stays) = (format!("gone-{round}"), format!("stays-{round}"));
        tokio::select! {
            biased;
            _ = caller.count(&gone) => {}
            () = tokio::task::yield_now() => {}
        }
        let (a, b) = tokio::join!(caller.count(&stays), caller.count(&stays));
        let mut numbers = [a.unwrap(), b.unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
    }
}

/// The connection of a thread is still being opened, which takes a while.
#[test]
fn a_thread_without_a_connection_asks_over_that_of_another() {
    let server = Server::start_with(&["--requirepass", "open-sesame"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let servers = Servers::at("127.0.0.1", port);
    servers.set_credentials(Credentials { password: Some(Arc::from("open-sesame")), ..Credentials::default() });
    let caller = Caller { link: Link::new(servers, 2), script: Script::new(COUNT) };
    // the first connection reaches the server, later ones get no answer
    let way = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
        drop(std::io::copy(&mut { client }, &mut { server }));
        drop(listener);
    });
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let caller = Arc::new(caller);
    let count = |runtime: &tokio::runtime::Runtime| {
        let caller = Arc::clone(&caller);
        runtime.block_on(runtime.spawn(async move { caller.count("a").await })).unwrap()
    };
    assert_eq!(count(&one), Ok(1));
    assert_eq!([count(&other), count(&other), count(&one)], [Ok(2), Ok(3), Ok(4)]);
    drop((one, other));
    drop(caller);
    way.join().unwrap();
}
