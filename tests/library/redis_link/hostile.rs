//! Servers that are not Redis, or that break its protocol.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::redis_client::{Credentials, Servers};
use tollgate::store::shared::link::CallError;

use crate::redis_link::Caller;

/// A server that sends `first` on each new connection, and runs `then` whenever data arrives.
fn serve(first: &'static [u8], then: fn(&mut TcpStream) -> std::io::Result<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream?;
                stream.write_all(first)?;
                let mut told = [0; 64 << 10];
                while stream.read(&mut told)? > 0 {
                    then(&mut stream)?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    port
}

#[tokio::test]
async fn servers_that_are_no_redis_are_an_error() {
    let servers: [(&str, u16); 6] = [
        ("http", serve(b"", |stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))),
        ("ssh", serve(b"SSH-2.0-OpenSSH_9.2\r\n", |_| Ok(()))),
        ("newer protocol", serve(b"", |stream| stream.write_all(b"%1\r\n+a\r\n+b\r\n"))),
        ("garbage", serve(b"", |stream| stream.write_all(&[0xff; 4096]))),
        ("end", serve(b"", |stream| stream.shutdown(std::net::Shutdown::Both))),
        ("unasked", serve(b"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n", |_| Ok(()))),
    ];
    for (what, port) in servers {
        let answer = Caller::to(port).count("a").await;
        assert!(matches!(answer, Err(CallError::InvalidReply(_) | CallError::Broken(_))), "{what}: {answer:?}");
    }
}

/// Whoever sees such an error may send the command again: the server cannot have run it.
#[tokio::test]
async fn a_connection_that_ends_at_login_has_carried_no_command() {
    for ends in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let servers = Servers::at("127.0.0.1", listener.local_addr().unwrap().port());
        servers.set_credentials(Credentials { password: Some(Arc::from("open-sesame")), ..Credentials::default() });
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // unread bytes make the end of a connection a reset
                drop(if ends { stream.read(&mut [0; 64 << 10]) } else { stream.read(&mut [0]) });
            }
        });
        let answer = Caller::of(servers).count("a").await;
        assert!(matches!(answer, Err(CallError::Unreachable(_))), "{answer:?}");
    }
}

/// A server that sends `answer` to each call, once or endlessly; returns its port and the number of bytes sent.
fn answer_with(answer: &'static [u8], forever: bool) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let said = Arc::new(AtomicUsize::new(0));
    let all_said = Arc::clone(&said);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                let mut stream = stream?;
                let mut told = [0; 64 << 10];
                while stream.read(&mut told)? > 0 {
                    loop {
                        stream.write_all(answer)?;
                        said.fetch_add(answer.len(), Ordering::Relaxed);
                        if !forever {
                            break;
                        }
                    }
                }
                std::io::Result::Ok(())
            });
        }
    });
    (port, all_said)
}

#[tokio::test]
async fn an_answer_beyond_measure_ends_the_connection_before_it_is_read() {
    const LINE: &[u8] = &[b'x'; 64 << 10];
    let endless: [(&[u8], bool); 6] = [
        (b"$9999999999\r\n", false),
        (b"*1000000000\r\n", false),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", false),
        (b"$-7\r\n", false),
        (b"+this goes on and on and never comes to an end of its line ", true),
        (LINE, true),
    ];
    for (answer, forever) in endless {
        let (port, said) = answer_with(answer, forever);
        let caller = Caller::to(port);
        for _ in 0..3 {
            let answered = caller.count("a").await;
            assert!(answered.is_err(), "{answered:?}");
        }
        let said = said.load(Ordering::Relaxed);
        assert!(said < 32 << 20, "{said} bytes of {:?}", answer.escape_ascii().to_string());
    }
}

#[tokio::test]
async fn an_answer_of_another_shape_is_an_error() {
    for answer in [b"+OK\r\n".as_slice(), b":1\r\n", b"$3\r\nabc\r\n", b"$-1\r\n", b"*-1\r\n", b"-ERR no\r\n", b"-\r\n"]
    {
        let (port, _) = answer_with(answer, false);
        let answered = Caller::to(port).count("a").await;
        assert!(answered.is_err(), "{answered:?}");
    }
}

/// Each connection gets one answer too many, which the link must not take for that of the next call.
#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_never_taken_for_one() {
    let (port, _) = answer_with(b"*2\r\n$5\r\nother\r\n:7\r\n*2\r\n$5\r\nother\r\n:7\r\n", false);
    let caller = Caller::to(port);
    for _ in 0..5 {
        let answered = caller.count("a").await;
        assert!(answered.is_err(), "{answered:?}");
    }
}
