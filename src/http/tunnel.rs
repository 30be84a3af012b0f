//! An upgraded connection: bytes go in both directions until one side ends.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::body::{Decoder, Framing};
use super::buffer::Buffer;
use super::client::Client;
use super::presence::LINGER;
use super::service::{Exchange, Timing};
use super::socket::Socket;
use super::timer::Timer;
use super::upstream::Upstream;
use crate::units::Nanos;

/// Copies between the two sides until one ends, the upstream is silent for too long, or the exchange's deadline passes. Then
/// closes both sides, and leaves it to the connection to discard the bytes that the client still sends.
pub(super) async fn run(
    client: &mut Client<'_>,
    upstream: Upstream,
    exchange: &mut impl Exchange,
    timing: Timing,
    timer: &mut Timer,
) {
    let (Client::Http1(client), Upstream::Http1(mut upstream)) = (client, upstream) else { return };
    // all further bytes belong to the tunnel
    client.keeps_alive = false;
    client.channel.begin_body(Decoder::new(Framing::UntilClose));
    let (client, upstream) = (&mut client.channel, &mut upstream.channel);
    let patience = timing.idle.max(timing.first_byte);
    let mut silent_since = timer.now();
    // bytes that came with the response
    if !upstream.buffer.unread().is_empty() {
        exchange.response_body(upstream.buffer.unread(), false);
    }
    // the encoder still holds the head of the response
    let mut copying = poll_fn(|task| {
        // TLS may still hold a part of the bytes, on both sides
        let flushed = client.encoder.poll_flush(task, &mut client.socket);
        for flushed in [flushed, Pin::new(&mut upstream.socket).poll_flush(task)] {
            if let Poll::Ready(Err(error)) = flushed {
                return Poll::Ready(Err(error));
            }
        }
        let down = if client.encoder.is_flushed() {
            let count = |part: &[u8]| exchange.response_body(part, false);
            poll_copy(task, &mut upstream.buffer, &mut upstream.socket, &mut client.socket, count)
        } else {
            Poll::Pending
        };
        if let Poll::Ready(copied) = down {
            return Poll::Ready(copied.map(|length| length > 0));
        }
        match poll_copy(task, &mut client.buffer, &mut client.socket, &mut upstream.socket, |_| {}) {
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(false)),
            Poll::Ready(Ok(_)) => {
                task.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    });
    loop {
        let due = silent_since.saturating_add(patience);
        let due = timing.due.map_or(due, |total| total.min(due));
        match timer.run(due, Pin::new(&mut copying)).await {
            Ok(Ok(true)) => silent_since = timer.now(),
            Ok(Ok(false) | Err(_)) | Err(_) => break,
        }
    }
    drop(copying);
    // an error makes no difference here: the connections end anyway
    let closing = poll_fn(|task| {
        drop(Pin::new(&mut upstream.socket).poll_shutdown(task));
        Pin::new(&mut client.socket).poll_shutdown(task)
    });
    drop(timer.run(timer.after(Nanos::SECOND), pin!(closing)).await);
    // if the socket were closed with unread bytes, the upstream would lose the end of what the client sent
    upstream.buffer.consume(usize::MAX);
    let discarding = poll_fn(|task| {
        while ready!(upstream.buffer.poll_read(task, &mut upstream.socket))? > 0 {
            upstream.buffer.consume(usize::MAX);
        }
        Poll::Ready(io::Result::Ok(()))
    });
    drop(timer.run(timer.after(LINGER), pin!(discarding)).await);
}

/// Copies the available bytes and returns how many; 0 at the end.
fn poll_copy(
    task: &mut Context<'_>,
    buffer: &mut Buffer,
    from: &mut Socket,
    to: &mut Socket,
    mut count: impl FnMut(&[u8]),
) -> Poll<io::Result<usize>> {
    if buffer.unread().is_empty() {
        let came = ready!(buffer.poll_read(task, from))?;
        if came == 0 {
            return Poll::Ready(Ok(0));
        }
        count(buffer.unread());
    }
    let mut copied = 0_usize;
    while !buffer.unread().is_empty() {
        match Pin::new(&mut *to).poll_write(task, buffer.unread()) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => {
                buffer.consume(written);
                copied = copied.saturating_add(written);
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if copied > 0 => break,
            Poll::Pending => return Poll::Pending,
        }
    }
    // what TLS still holds then is flushed by the next poll
    let _flushed = Pin::new(to).poll_flush(task)?;
    Poll::Ready(Ok(copied))
}
