//! Callers that write bytes: HTTP/1 as it is, and HTTP/2 frame by frame, without any library that would refuse to.
//!
//! They read only what they have to: the status of each answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::requests::Case;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with this status; the verdict was `admitted`.
    Admitted,
    /// Answered without a verdict of the sender's: refused.
    Refused(u16),
    /// Closed, reset, or silent: nothing is known.
    Nothing,
}

/// How long an answer is waited for.
const WAIT: Duration = Duration::from_millis(700);

/// One connection, made again whenever it is used up.
pub(crate) struct Caller {
    address: SocketAddr,
    first: Option<TcpStream>,
    second: Option<Http2>,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, first: None, second: None }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        // Ended with a reset, so that thousands of closed connections leave no ports behind.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        stream
    }

    pub(crate) fn ask(&mut self, case: &Case, wire: &[u8]) -> Outcome {
        if case.second {
            let mut connection = match self.second.take() {
                Some(connection) => connection,
                None => match Http2::new(self.connect()) {
                    Ok(connection) => connection,
                    Err(_) => return Outcome::Nothing,
                },
            };
            return match connection.ask(case) {
                Ok(outcome) => {
                    self.second = Some(connection);
                    outcome
                }
                Err(_) => Outcome::Nothing,
            };
        }
        let mut stream = self.first.take().unwrap_or_else(|| self.connect());
        if stream.write_all(wire).is_err() {
            return Outcome::Nothing;
        }
        match read_answer(&mut stream, case.method == "HEAD") {
            Ok((outcome, keep)) => {
                if keep && case.clean {
                    self.first = Some(stream);
                }
                outcome
            }
            Err(_) => Outcome::Nothing,
        }
    }
}

/// One final answer, and whether another request may follow.
fn read_answer(stream: &mut TcpStream, to_head: bool) -> io::Result<(Outcome, bool)> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 8 * 1024];
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..count]);
        while let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let status: u16 =
                head.get(9..12).and_then(|status| status.parse().ok()).ok_or(ErrorKind::InvalidData)?;
            if status < 200 {
                bytes.drain(..end + 4);
                continue;
            }
            let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let length: usize = field("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
            let length = if to_head { 0 } else { length };
            if bytes.len() < end + 4 + length {
                break;
            }
            let outcome = match field("x-fencing-verdict:") {
                Some("admitted") => Outcome::Admitted,
                Some(_) | None => Outcome::Refused(status),
            };
            return Ok((outcome, outcome == Outcome::Admitted && field("connection:") != Some("close")));
        }
    }
}

/// An HTTP/2 connection, one stream after the other.
struct Http2 {
    stream: TcpStream,
    pending: Vec<u8>,
    next: u32,
}

impl Http2 {
    fn new(mut stream: TcpStream) -> io::Result<Self> {
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // No dynamic table, so that statuses can be read without one.
        frame(&mut hello, 4, 0, 0, &[0, 1, 0, 0, 0, 0]);
        stream.write_all(&hello)?;
        Ok(Self { stream, pending: Vec::new(), next: 1 })
    }

    fn ask(&mut self, case: &Case) -> io::Result<Outcome> {
        let id = self.next;
        self.next += 2;
        let mut block = Vec::new();
        let mut field = |name: &[u8], value: &[u8]| {
            block.push(0);
            string(&mut block, name);
            string(&mut block, value);
        };
        field(b":method", case.method.as_bytes());
        field(b":scheme", b"http");
        field(b":authority", b"h");
        field(b":path", &case.target);
        case.fields.iter().for_each(|(name, value)| field(name, value));
        let mut frames = Vec::new();
        let ends = u8::from(case.body.is_empty());
        frame(&mut frames, 1, 4 | ends, id, &block);
        if !case.body.is_empty() {
            frame(&mut frames, 0, 1, id, &case.body);
        }
        self.stream.write_all(&frames)?;
        loop {
            let (kind, flags, stream, payload) = self.read_frame()?;
            match kind {
                // An answer's head; nothing else of it matters but the verdict, which its status tells: only senders say 200.
                1 if stream == id => {
                    let status = status(&payload).ok_or(ErrorKind::InvalidData)?;
                    self.finish(id, flags)?;
                    return Ok(if status == 200 { Outcome::Admitted } else { Outcome::Refused(status) });
                }
                3 if stream == id => return Ok(Outcome::Nothing),
                4 if flags & 1 == 0 => {
                    let mut answer = Vec::new();
                    frame(&mut answer, 4, 1, 0, &[]);
                    self.stream.write_all(&answer)?;
                }
                6 if flags & 1 == 0 => {
                    let mut answer = Vec::new();
                    frame(&mut answer, 6, 1, 0, &payload);
                    self.stream.write_all(&answer)?;
                }
                7 => return Err(ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
        }
    }

    /// Reads to the end of a stream.
    fn finish(&mut self, id: u32, flags: u8) -> io::Result<()> {
        let mut ended = flags & 1 != 0;
        while !ended {
            let (kind, flags, stream, payload) = self.read_frame()?;
            if kind == 0 && !payload.is_empty() {
                let mut answer = Vec::new();
                let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
                frame(&mut answer, 8, 0, 0, &size);
                self.stream.write_all(&answer)?;
            }
            ended = stream == id && (kind == 3 || (kind <= 1 && flags & 1 != 0));
        }
        Ok(())
    }

    fn read_frame(&mut self) -> io::Result<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let Some(&[a, b, c, kind, flags, w, x, y, z]) = self.pending.first_chunk::<9>() {
                let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
                if self.pending.len() >= 9 + length {
                    let payload = self.pending[9..9 + length].to_vec();
                    self.pending.drain(..9 + length);
                    return Ok((kind, flags, u32::from_be_bytes([w & 0x7f, x, y, z]), payload));
                }
            }
            let mut piece = [0; 8 * 1024];
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.pending.extend_from_slice(&piece[..count]);
        }
    }
}

fn frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    into.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    into.extend_from_slice(&[kind, flags]);
    into.extend_from_slice(&stream.to_be_bytes());
    into.extend_from_slice(payload);
}

/// A string of HPACK, as it is.
fn string(into: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    if length < 127 {
        into.push(u8::try_from(length).unwrap());
    } else {
        into.push(127);
        length -= 127;
        while length >= 128 {
            into.push(u8::try_from(length % 128).unwrap() | 128);
            length /= 128;
        }
        into.push(u8::try_from(length).unwrap());
    }
    into.extend_from_slice(text);
}

/// The status, which comes first in a block that uses no dynamic table.
fn status(mut block: &[u8]) -> Option<u16> {
    // Changes of the table's size.
    while block.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
        block = &block[1..];
    }
    let (first, rest) = block.split_first()?;
    let known = [200, 204, 206, 304, 400, 404, 500];
    if first & 0x80 != 0 {
        return known.get(usize::from(first & 0x7f).checked_sub(8)?).copied();
    }
    let (length, text) = rest.split_first()?;
    let text = text.get(..usize::from(length & 0x7f))?;
    if length & 0x80 == 0 {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    // Digits in Huffman's code: five bits for 0, 1 and 2, six for the others.
    let bits: Vec<u8> = text.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0_u16, |sum, bit| sum * 2 + u16::from(*bit));
    let (mut at, mut status) = (0, 0);
    for _ in 0..3 {
        let short = number(bits.get(at..at + 5)?);
        let (digit, width) = if short < 3 { (short, 5) } else { (number(bits.get(at..at + 6)?) - 25 + 3, 6) };
        status = status * 10 + digit;
        at += width;
    }
    Some(status)
}
