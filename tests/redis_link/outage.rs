//! Servers that forget, hang, end and come back.

use std::time::Duration;

use crate::Caller;
use crate::ports::free_port;
use crate::server::Server;
use tollgate::store::shared::link::CallError;

#[tokio::test]
async fn a_script_that_the_server_forgot_is_told_again_and_known_as_a_loss() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    let before = caller.link.generation();
    assert_eq!(caller.count("a").await, Ok(2));
    assert_eq!(caller.link.generation(), before);
    server.say(&["SCRIPT", "FLUSH"]);
    assert_eq!(caller.count("a").await, Ok(3));
    assert!(caller.link.generation() > before);
}

#[tokio::test]
async fn a_server_that_was_away_is_found_again() {
    let port = free_port();
    let caller = Caller::to(port);
    let away = caller.count("a").await;
    assert!(matches!(away, Err(CallError::Unreachable(_))), "{away:?}");
    for _ in 0..3 {
        let server = Server::start_on(port, &[]);
        let before = caller.link.generation();
        assert_eq!(caller.count_again("a").await, 1);
        assert!(caller.link.generation() > before);
        server.signal("KILL");
        let gone = tokio::time::timeout(crate::PATIENCE, async { while caller.count("a").await.is_ok() {} });
        gone.await.expect("an error");
    }
}

#[tokio::test]
async fn those_who_wait_for_a_server_that_hangs_are_told_when_it_is_given_up() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    server.signal("STOP");
    let calls = async { tokio::join!(caller.count("a"), caller.count("b"), caller.count("c")) };
    let give_up = async {
        tokio::task::yield_now().await;
        caller.link.give_up().await;
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
    assert!(matches!((&a, &b), (Err(CallError::Unreachable(_)), Err(CallError::Unreachable(_)))), "{a:?} {b:?}");
    server.signal("CONT");
    assert!(caller.count_again("c").await >= 1);
}

#[tokio::test]
async fn a_connection_on_which_something_comes_stays() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    let before = caller.link.generation();
    let busy = async {
        for number in 2..=60 {
            drop(tokio::time::timeout(Duration::ZERO, caller.count("b")).await);
            tokio::time::sleep(Duration::from_millis(25)).await;
            assert_eq!(caller.count("a").await, Ok(number));
        }
    };
    busy.await;
    assert_eq!(caller.link.generation(), before);
}

#[tokio::test]
async fn a_server_that_may_only_be_read_is_left() {
    let server = Server::start();
    let caller = Caller::to(server.port);
    assert_eq!(caller.count("a").await, Ok(1));
    let before = caller.link.generation();
    server.say(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = caller.count("a").await;
    assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    server.say(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(caller.count_again("a").await, 2);
    assert!(caller.link.generation() > before, "by another connection");
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
