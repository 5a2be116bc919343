//! HTTP/2 frame by frame: what a sender reads and writes that keeps to no rules.
//!
//! It knows no state and no windows; a head is written field by field and never read.

use std::io::{self, Read, Write};

/// Kinds of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Flags.
pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame that was read.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Whether it ends its side of a stream.
    pub fn ends(&self) -> bool {
        [DATA, HEADERS].contains(&self.kind) && self.flags & END_STREAM != 0
    }
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The fields of a head, each written out: names in lower case, less than 127 bytes each.
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// A head as one frame.
pub fn head(stream: u32, flags: u8, all: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, fields(all))
}

/// A whole answer with this body.
pub fn answer(stream: u32, body: &str) -> Vec<u8> {
    let length = body.len().to_string();
    [
        head(stream, 0, &[(":status", "200"), ("content-length", &length)]),
        frame(DATA, END_STREAM, stream, body),
    ]
    .concat()
}

/// The last stream that was looked at, and why.
pub fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, [last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Reads one frame.
pub fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [a, b, c, kind, flags, s @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    from.read_exact(&mut payload)?;
    Ok(Frame { kind, flags, stream: u32::from_be_bytes(s), payload })
}

/// The beginning of a connection: reads the client's, and writes settings of our own, each six bytes.
pub fn greet(from: &mut impl Read, to: &mut impl Write, settings: &[u8]) -> io::Result<()> {
    to.write_all(&frame(SETTINGS, 0, 0, settings))?;
    let mut preface = [0; PREFACE.len()];
    from.read_exact(&mut preface)?;
    if preface != PREFACE { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
}

/// Answers what every peer has to: settings and pings. True if there was nothing else to it.
pub fn acknowledge(read: &Frame, to: &mut impl Write) -> io::Result<bool> {
    match (read.kind, read.flags & ACK) {
        (SETTINGS, 0) => to.write_all(&frame(SETTINGS, ACK, 0, []))?,
        (PING, 0) => to.write_all(&frame(PING, ACK, 0, &read.payload))?,
        (SETTINGS | PING | WINDOW_UPDATE, _) => {}
        _ => return Ok(false),
    }
    Ok(true)
}
