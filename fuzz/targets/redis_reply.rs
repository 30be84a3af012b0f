//! Bytes that come from Redis: they are cut into answers where the client's own parser cuts them, or refused.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate::redis_client::{Guard, Progress};

use super::input::{Pieces, mixed};

const ASKED: u64 = 12;

/// Where answers end, as far as they could be read, and whether that was all.
fn follow(data: &[u8], most: usize) -> (Vec<usize>, bool) {
    let progress = Arc::new(Progress::default());
    let mut guard = Guard::new(Pieces { left: data, most }, Arc::clone(&progress));
    let commands = b"+\r\n".repeat(usize::try_from(ASKED).unwrap());
    ready(guard.write_all(&commands)).unwrap();
    let (mut ends, mut buffer, mut at) = (Vec::new(), vec![0; 4096], 0);
    loop {
        match ready(guard.read(&mut buffer)) {
            Ok(0) => return (ends, true),
            Ok(length) => {
                at += length;
                let answered = progress.waits_behind().unwrap_or(ASKED);
                ends.resize(usize::try_from(answered).unwrap(), at);
            }
            Err(_) => return (ends, false),
        }
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("all bytes are there"),
    }
}

pub(crate) fn run(data: &[u8]) {
    let (ends, whole) = follow(data, 1);
    let (parts, same) = follow(data, 1 + mixed(data) % 50);
    assert_eq!(whole, same, "it does not matter how bytes come");
    if whole {
        assert_eq!(parts.len(), ends.len());
    }
    let mut start = 0;
    for end in ends {
        let answer = &data[start..end];
        let cut = answer.get(..answer.len() - 1).unwrap_or_default();
        assert!(redis::parse_redis_value(cut).is_err(), "the parser ends it earlier: {}", answer.escape_ascii());
        if let Err(error) = redis::parse_redis_value(answer) {
            let text = error.to_string().to_lowercase();
            assert!(!text.contains("eof") && !text.contains("end of"), "{error}: {}", answer.escape_ascii());
        }
        start = end;
    }
}
