//! The parts of HTTP/2 that the library leaves to its users: flow control for sent content, and whether a client has
//! begun to send a head and not finished it.
//!
//! A head is a HEADERS frame, followed by CONTINUATION frames until one is marked as the last (RFC 9113, section 6.10); no
//! other frame may come between them. This module does not read the content of frames.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;

/// The first bytes of each connection (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The size of a frame header: the frame's length, its type, its flags and its stream.
const FRONT: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The position of the client in the sequence of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameTracker {
    /// How many bytes of the preface or of a frame's content are still to come.
    left: usize,
    /// The part of the next frame's header that has arrived.
    front: FrameHeader,
    /// Whether the current frame is DATA, whose pace the request checks.
    in_data: bool,
    /// Whether the current head continues after the current frame.
    awaits_continuation: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FrameHeader {
    bytes: [u8; FRONT],
    length: usize,
}

impl FrameTracker {
    /// The state before the preface.
    pub(super) const fn new() -> Self {
        let front = FrameHeader { bytes: [0; FRONT], length: 0 };
        Self { left: PREFACE.len(), front, in_data: false, awaits_continuation: false }
    }

    /// Follows the frames through `bytes`, which have arrived. Returns whether a head, or another frame, has ended in them.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_ended = false;
        while !bytes.is_empty() {
            let taken = match self.left {
                0 => self.take_front(bytes),
                left => {
                    let taken = left.min(bytes.len());
                    self.left = left.saturating_sub(taken);
                    taken
                }
            };
            bytes = bytes.get(taken..).unwrap_or_default();
            has_ended |= self.left == 0 && self.front.length == 0 && !self.awaits_continuation;
        }
        has_ended
    }

    /// Takes the bytes of a frame header from `bytes`. Returns how many belong to it.
    fn take_front(&mut self, bytes: &[u8]) -> usize {
        let rest = self.front.bytes.get_mut(self.front.length..).unwrap_or_default();
        let taken = rest.len().min(bytes.len());
        rest.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        self.front.length = self.front.length.saturating_add(taken);
        if self.front.length == FRONT {
            let [high, middle, low, kind, flags, ..] = self.front.bytes;
            self.left = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
            self.front.length = 0;
            self.in_data = kind == DATA;
            self.awaits_continuation = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS == 0;
        }
        taken
    }

    /// Whether a head, or any frame other than DATA, has begun and not ended.
    pub(super) const fn is_within(&self) -> bool {
        self.awaits_continuation || self.front.length > 0 || (self.left > 0 && !self.in_data)
    }
}

/// Waits for flow control capacity for `wanted` bytes or a part of them. Returns the available capacity.
pub(super) fn poll_capacity(
    stream: &mut SendStream<Bytes>,
    task: &mut Context<'_>,
    wanted: usize,
) -> Poll<io::Result<usize>> {
    stream.reserve_capacity(wanted);
    loop {
        match stream.capacity() {
            0 => match ready!(stream.poll_capacity(task)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            },
            room => return Poll::Ready(Ok(room.min(wanted))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A frame with this type, these flags and this length.
    fn frame((kind, flags, length): (u8, u8, u16)) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        [&[0, high, low, kind, flags, 0, 0, 0, 1][..], &vec![b'x'; usize::from(length)]].concat()
    }

    #[test]
    fn a_head_is_over_with_the_frame_that_says_so() {
        let mut frames = FrameTracker::new();
        assert!(frames.is_within(), "the preface is to come");
        frames.take(PREFACE);
        assert!(!frames.is_within());
        for (sent, has_ended, is_within) in [
            (frame((4, 0, 18)), true, false),
            (frame((HEADERS, 0, 5)), false, true),
            (frame((CONTINUATION, 0, 0)), false, true),
            (frame((CONTINUATION, END_HEADERS, 5)), true, false),
            (frame((HEADERS, END_HEADERS | 1, 5)), true, false),
            (frame((DATA, 0, 5)), true, false),
            (frame((DATA, 0, 5))[..12].to_vec(), false, false),
            (b"xx\0".to_vec(), true, true),
            (b"\0\x06\x04\0\0\0\0".to_vec(), false, true),
            (b"\0xxxxx".to_vec(), false, true),
            (b"x\0".to_vec(), true, true),
        ] {
            assert_eq!((frames.take(&sent), frames.is_within()), (has_ended, is_within), "{sent:?}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_parts_frames_come(
            sent in vec((0..10_u8, 0..8_u8, 0..600_u16), 0..20), parts in vec(1..400_usize, 1..20),
        ) {
            let bytes = [PREFACE.to_vec(), sent.iter().flat_map(|sent| frame(*sent)).collect()].concat();
            let mut frames = FrameTracker::new();
            let (mut rest, mut parts) = (&bytes[..], parts.iter().cycle());
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(rest.len().min(*parts.next().unwrap()));
                frames.take(part);
                rest = behind;
            }
            let mut whole = FrameTracker::new();
            whole.take(&bytes);
            prop_assert_eq!(&frames, &whole);
            let awaits_continuation = |(kind, flags, _): &(u8, u8, u16)| matches!(kind, 1 | 9) && flags & END_HEADERS == 0;
            prop_assert_eq!(frames.is_within(), sent.last().is_some_and(awaits_continuation));
        }
    }
}
