//! The event stream of the elections' listener: one connection, read as it comes.
//!
//! It keeps at most one event, and tells when nothing has come for too long. It does not reopen itself.

use std::pin::Pin;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::answer::Election;

/// The gateway says something every 15 seconds.
const SILENCE: Duration = Duration::from_secs(40);

/// An event of an account with 100,000 candidates is shorter.
const LONGEST_EVENT: usize = 4 << 20;

/// What a stream tells.
#[derive(Debug)]
pub(super) enum Told {
    Account(Election),
    /// Something was left out.
    Lagged,
}

/// An open stream.
pub(super) struct Stream {
    body: Incoming,
    lines: Lines,
    /// When it has been silent for too long. Kept, because waiting is given up and begun again all the time.
    silent: Pin<Box<Sleep>>,
}

impl Stream {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, lines: Lines::default(), silent: Box::pin(tokio::time::sleep(SILENCE)) }
    }

    /// The next event. Dropping the future loses none.
    ///
    /// # Errors
    /// The stream is over, for this reason.
    pub(super) async fn next(&mut self) -> Result<Told, String> {
        loop {
            if let Some(told) = self.lines.next()? {
                return Ok(told);
            }
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = &mut self.silent => return Err(format!("no event for {} s", SILENCE.as_secs())),
            };
            match frame {
                None => return Err("the gateway closed the event stream".to_owned()),
                Some(Err(why)) => return Err(format!("the event stream broke: {why}")),
                Some(Ok(frame)) => {
                    self.silent = Box::pin(tokio::time::sleep(SILENCE));
                    self.lines.take_in(frame.data_ref().map_or(&[][..], |data| data))?;
                }
            }
        }
    }
}

/// The lines of a stream, and the event that they are making.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    /// How much of it has been read.
    read: usize,
    kind: String,
    data: String,
}

impl Lines {
    fn take_in(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() + self.data.len() > LONGEST_EVENT {
            return Err("an event is too long".to_owned());
        }
        Ok(())
    }

    /// The next whole event of those that are known.
    fn next(&mut self) -> Result<Option<Told>, String> {
        loop {
            let rest = self.buffer.get(self.read..).unwrap_or_default();
            let Some(end) = memchr::memchr(b'\n', rest) else { return Ok(None) };
            let line = rest.get(..end).unwrap_or_default();
            let line = std::str::from_utf8(line).map_err(|_| "an event is no text".to_owned())?;
            let line = line.strip_suffix('\r').unwrap_or(line);
            let mut whole = false;
            match line.split_once(':').map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value)))
            {
                None if line.is_empty() => whole = true,
                Some(("event", value)) => value.clone_into(&mut self.kind),
                Some(("data", value)) => self.data.push_str(value),
                // A comment, or a field that is not used.
                Some(_) | None => {}
            }
            self.read += end + 1;
            if !whole {
                continue;
            }
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            match kind.as_str() {
                "account" => {
                    let read = serde_json::from_str(&data).map(Told::Account);
                    return read.map(Some).map_err(|why| format!("an event cannot be read: {why}"));
                }
                "lagged" => return Ok(Some(Told::Lagged)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &str = "event: open\ndata: {}\n\n:\n\nevent: account\r\n\
        data: {\"account\":\"wxid_1\",\"holder\":null,\"candidates\":[],\"newest\":3}\n\nevent: new\ndata: 1\n\nevent: lagged\ndata: {}\n\n";

    #[test]
    fn events_are_read_however_they_are_cut() {
        for size in 1..EVENTS.len() {
            let mut lines = Lines::default();
            let mut told = Vec::new();
            for piece in EVENTS.as_bytes().chunks(size) {
                lines.take_in(piece).unwrap();
                while let Some(next) = lines.next().unwrap() {
                    told.push(next);
                }
            }
            let [Told::Account(election), Told::Lagged] = &told[..] else { panic!("{size}: {told:?}") };
            assert_eq!((election.account.as_str(), election.newest), ("wxid_1", 3));
            assert_eq!(lines.read, lines.buffer.len());
        }
    }

    #[test]
    fn what_cannot_be_an_event_ends_the_stream() {
        let read = |bytes: &[u8]| {
            let mut lines = Lines::default();
            lines.take_in(bytes)?;
            lines.next()
        };
        assert!(read(b"event: account\ndata: {\n\n").unwrap_err().contains("cannot be read"));
        assert!(read(b"event: \xff\n\n").unwrap_err().contains("no text"));
        assert!(read(&vec![b'x'; LONGEST_EVENT + 1]).unwrap_err().contains("too long"));
    }
}
