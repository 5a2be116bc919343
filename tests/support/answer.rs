//! What a sender answers, and how it fails to.
//!
//! Only a description; [`Sender`](super::Sender) carries it out.

use std::time::Duration;

use super::http1::Headers;
use super::wait::Latch;

/// What becomes of the connection after the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It stays open for the next request.
    #[default]
    KeepAlive,
    /// It is closed, and the answer says so.
    Close,
    /// It is closed without a word.
    CloseSilently,
}

/// What one request gets. Made by [`Answer::ok`] and friends, changed by its methods.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    status: u16,
    body: Vec<u8>,
    headers: Headers,
    ending: Ending,
    pub(super) delay: Duration,
    pub(super) latch: Option<Latch>,
    pub(super) reset: bool,
    pub(super) hang_up: bool,
    cut_at: Option<usize>,
    raw: Option<Vec<u8>>,
    chunked: bool,
    pub(super) drip: Option<(usize, Duration)>,
}

impl Answer {
    /// 200 with `{"sent":true}`.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// Another status, the same body.
    pub fn status(status: u16) -> Self {
        Self { status, body: br#"{"sent":true}"#.to_vec(), ..Self::default() }
    }

    /// These bytes and nothing else, whatever they are.
    pub fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self { raw: Some(bytes.as_ref().to_vec()), ..Self::ok() }
    }

    /// A reset instead of an answer.
    pub fn reset() -> Self {
        Self { reset: true, ..Self::ok() }
    }

    /// An orderly end of the connection instead of an answer.
    pub fn hang_up() -> Self {
        Self { hang_up: true, ..Self::ok() }
    }

    /// With this body.
    #[must_use]
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers = self.headers.with(name, value);
        self
    }

    /// Given so much later.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Given when the latch is released. The end of the connection is noticed meanwhile.
    #[must_use]
    pub fn held(mut self, latch: &Latch) -> Self {
        self.latch = Some(latch.clone());
        self
    }

    /// With this end of the connection.
    #[must_use]
    pub fn ending(mut self, ending: Ending) -> Self {
        self.ending = ending;
        self
    }

    /// Only so many bytes of the body, although the head promises all; then the connection ends.
    #[must_use]
    pub fn cut_at(mut self, bytes: usize) -> Self {
        self.cut_at = Some(bytes);
        self
    }

    /// With a chunked body.
    #[must_use]
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// In pieces of so many bytes with pauses between them.
    #[must_use]
    pub fn dripping(mut self, bytes: usize, pause: Duration) -> Self {
        self.drip = Some((bytes, pause));
        self
    }

    pub(super) fn closes(&self) -> bool {
        self.ending != Ending::KeepAlive || self.cut_at.is_some() || self.reset || self.hang_up
    }

    pub(super) fn to_wire(&self) -> Vec<u8> {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut headers = self.headers.clone();
        if !headers.has("content-type") {
            headers = headers.with("Content-Type", "application/json");
        }
        let (framing, length, body) = if self.chunked {
            let chunk = [format!("{:x}\r\n", self.body.len()).as_bytes(), &self.body, b"\r\n"].concat();
            let chunk = if self.body.is_empty() { Vec::new() } else { chunk };
            ("Transfer-Encoding", "chunked".to_owned(), [&chunk, b"0\r\n\r\n".as_slice()].concat())
        } else {
            ("Content-Length", self.body.len().to_string(), self.body.clone())
        };
        if !headers.has(framing) {
            headers = headers.with(framing, length);
        }
        if self.ending == Ending::Close {
            headers = headers.with("Connection", "close");
        }
        let head = format!("HTTP/1.1 {} X\r\n{}\r\n", self.status, headers.to_wire());
        let body = &body[..self.cut_at.unwrap_or(body.len()).min(body.len())];
        [head.as_bytes(), body].concat()
    }
}
