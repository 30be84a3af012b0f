//! The sending side of a transfer: the body of the request, from the client to the upstream.

use std::task::{Context, Poll};

use super::{Transfer, TransferEvent, Upload};
use crate::http::service::Failure;
use crate::http::timer::Timer;
use crate::units::Nanos;

impl Transfer<'_, '_> {
    /// Makes one step towards the upstream. Ready with `None` if another step is possible at once.
    pub(super) fn poll_upload(
        &mut self,
        task: &mut Context<'_>,
        timer: &Timer,
    ) -> Result<Poll<Option<TransferEvent>>, Failure> {
        match self.upload {
            Upload::Resending => {
                let (content, sent) = &mut self.sent_before;
                match self.upstream.channel().poll_send(task, content.get(*sent..).unwrap_or_default(), false) {
                    Poll::Ready(Ok(0)) => {
                        self.upload = Upload::Reading;
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Ok(length)) => {
                        *sent = sent.saturating_add(length);
                        self.note_sent(timer.now());
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                    Poll::Pending => Ok(Poll::Pending),
                }
            }
            Upload::Reading => match self.client.poll_body(task) {
                Poll::Ready(Ok(true)) => {
                    if let Some(rate_credit) = &mut self.rate_credit {
                        rate_credit.record_bytes(self.client.channel().content().len(), timer.now());
                    }
                    self.client_sent = timer.now();
                    Ok(Poll::Ready(Some(TransferEvent::RequestContent)))
                }
                Poll::Ready(Ok(false)) => {
                    self.upload = Upload::Finishing;
                    Ok(Poll::Ready(None))
                }
                Poll::Ready(Err(failure)) => Err(failure),
                Poll::Pending => {
                    if let Some(rate_credit) = &mut self.rate_credit {
                        rate_credit.start_waiting(timer.now());
                    }
                    self.flush_upload(task, timer)
                }
            },
            Upload::Delayed { length, until } if until <= timer.now() => {
                Ok(Poll::Ready(Some(TransferEvent::DelayEnded(length))))
            }
            Upload::Delayed { .. } => self.flush_upload(task, timer),
            Upload::Sending(length) => {
                let ends = self.client.channel().ends_with_content();
                let content = self.client.channel().content();
                let is_last = ends && length == content.len();
                let content = content.get(..length).unwrap_or(content);
                match self.upstream.channel().poll_send(task, content, is_last) {
                    Poll::Ready(Ok(sent)) => {
                        self.client.channel().consume(sent);
                        self.note_sent(timer.now());
                        self.upload = match length.saturating_sub(sent) {
                            0 => Upload::Reading,
                            left => Upload::Sending(left),
                        };
                        Ok(Poll::Ready(None))
                    }
                    Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                    Poll::Pending => Ok(Poll::Pending),
                }
            }
            Upload::Finishing => match self.upstream.channel().poll_finish(task, &mut None) {
                Poll::Ready(Ok(())) => {
                    self.upload = Upload::Done;
                    self.rate_credit = None;
                    self.upstream_sent = timer.now();
                    Ok(Poll::Ready(None))
                }
                Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
                Poll::Pending => Ok(Poll::Pending),
            },
            Upload::Stopped | Upload::Done => Ok(Poll::Pending),
        }
    }

    /// Notes that the upstream has taken a part of the body.
    fn note_sent(&mut self, now: Nanos) {
        // the client is not responsible for the time that the upstream took
        (self.upstream_took, self.client_sent) = (now, now);
    }

    /// Sends what waits for more content, because none follows for now.
    fn flush_upload(&mut self, task: &mut Context<'_>, timer: &Timer) -> Result<Poll<Option<TransferEvent>>, Failure> {
        match self.upstream.channel().poll_flush(task) {
            Poll::Ready(Err(_)) => Ok(self.stop_upload(timer)),
            _ => Ok(Poll::Pending),
        }
    }

    /// Stops the upload, because the upstream takes no more. It may have answered before, so the gateway still
    /// waits for that.
    fn stop_upload(&mut self, timer: &Timer) -> Poll<Option<TransferEvent>> {
        self.consume_admitted();
        self.upload = Upload::Stopped;
        self.upstream_sent = timer.now();
        Poll::Ready(None)
    }

    /// Consumes the rest of the content that was admitted: a second try takes it from `resend`.
    pub(super) fn consume_admitted(&mut self) {
        if let Upload::Sending(length) | Upload::Delayed { length, .. } = self.upload {
            self.client.channel().consume(length);
        }
    }
}
