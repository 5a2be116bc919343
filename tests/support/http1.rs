//! HTTP/1.1 as bytes: what tests write is what goes out, and what came in can be looked at.
//!
//! Never corrects, retries or follows anything.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::wait::{PATIENCE, now};

/// Header fields in order, names as they were spelt. Bytes above 127 are shown as Latin-1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// No field.
    pub fn none() -> Self {
        Self::default()
    }

    /// With one more field at the end.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// Without any field of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.retain(|(have, _)| !have.eq_ignore_ascii_case(name));
        self
    }

    /// The first value of a name, in any case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Every value of a name, in any case.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.iter().filter(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    /// Whether the name occurs, in any case.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The names as they were spelt, in order.
    pub fn names(&self) -> Vec<&str> {
        self.iter().map(|(name, _)| name).collect()
    }

    /// All fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// As they go over the wire, without the empty line.
    pub fn to_wire(&self) -> String {
        self.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    }

    /// The fields below a message's first line.
    pub fn parse(lines: &str) -> Self {
        let fields = lines.split("\r\n").filter(|line| !line.is_empty());
        Self(fields.map(|line| line.split_once(':').unwrap_or((line, ""))).map(trimmed).collect())
    }
}

fn trimmed((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.trim_matches([' ', '\t']).to_owned())
}

impl<const N: usize> From<[(&str, &str); N]> for Headers {
    fn from(fields: [(&str, &str); N]) -> Self {
        Self(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    Absent,
    /// By its length.
    Length(usize),
    /// Chunked, with an end of its own.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

impl Framing {
    /// What the headers of a message say; `otherwise` where they say nothing.
    pub fn of(headers: &Headers, otherwise: Self) -> Self {
        let chunked = headers.all("transfer-encoding").iter().any(|coding| coding.contains("chunked"));
        match headers.get("content-length").map(str::parse) {
            _ if chunked => Self::Chunked,
            Some(Ok(length)) => Self::Length(length),
            _ => otherwise,
        }
    }
}

/// One end of a connection: reads messages piece by piece and keeps what came too early.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    buffer: Vec<u8>,
    deadline: Option<Instant>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: Vec::new(), deadline: None }
    }

    /// All reads together end by then; none: they wait for ever.
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Whether bytes wait that nobody has asked for yet.
    pub(super) fn has_more(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Reads once; zero at the end of the stream.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        let mut piece = [0; 64 * 1024];
        let count = match self.stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            other => other?,
        };
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    fn need(&mut self) -> io::Result<()> {
        if self.fill()? == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Everything up to and with the first `end`.
    fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut looked = 0;
        loop {
            let from = looked;
            if let Some(at) = self.buffer[from..].windows(end.len()).position(|window| window == end) {
                return Ok(self.buffer.drain(..from + at + end.len()).collect());
            }
            looked = self.buffer.len().saturating_sub(end.len() - 1);
            self.need()?;
        }
    }

    /// A message's head with its empty line.
    pub(super) fn head(&mut self) -> io::Result<Vec<u8>> {
        self.until(b"\r\n\r\n")
    }

    /// What came of a head that broke off.
    pub(super) fn leftover(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    fn exactly(&mut self, count: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let mut missing = count;
        loop {
            let here = missing.min(self.buffer.len());
            into.extend(self.buffer.drain(..here));
            missing -= here;
            if missing == 0 {
                return Ok(());
            }
            self.need()?;
        }
    }

    /// Reads a body to its end and returns its trailers; what came of it is in `into` even if it broke off.
    pub(super) fn body(&mut self, framing: Framing, into: &mut Vec<u8>) -> io::Result<Headers> {
        match framing {
            Framing::Absent => Ok(Headers::none()),
            Framing::Length(length) => self.exactly(length, into).map(|()| Headers::none()),
            Framing::Chunked => self.chunks(into),
            Framing::UntilClose => loop {
                into.append(&mut self.buffer);
                if self.fill()? == 0 {
                    return Ok(Headers::none());
                }
            },
        }
    }

    fn chunks(&mut self, into: &mut Vec<u8>) -> io::Result<Headers> {
        loop {
            let line = latin1(&self.until(b"\r\n")?);
            let digits = line.trim_end().split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16)
                .map_err(|_| io::Error::new(ErrorKind::InvalidData, format!("chunk size {line:?}")))?;
            if size == 0 {
                break;
            }
            self.exactly(size, into)?;
            self.exactly(2, &mut Vec::new())?;
        }
        let mut trailers = String::new();
        loop {
            match latin1(&self.until(b"\r\n")?) {
                line if line == "\r\n" => return Ok(Headers::parse(&trailers)),
                line => trailers.push_str(&line),
            }
        }
    }
}

pub(super) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// One response as it came.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// All headers.
    pub headers: Headers,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Trailers of a chunked body.
    pub trailers: Headers,
    /// The head as bytes.
    pub raw_head: Vec<u8>,
}

impl Response {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; panics with the body where it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the body of {}: {}", self.status, self.text()))
    }

    /// The problem code of a refusal.
    pub fn code(&self) -> Option<String> {
        serde_json::from_slice::<Value>(&self.body).ok()?.get("code")?.as_str().map(str::to_owned)
    }
}

/// A raw connection to anything that answers in HTTP/1.
#[derive(Debug)]
pub struct Connection(Wire);

impl Connection {
    /// Opens a connection; panics where nobody listens.
    #[track_caller]
    pub fn open(address: SocketAddr) -> Self {
        Self::try_open(address).unwrap_or_else(|error| panic!("no connection to {address}: {error}"))
    }

    /// # Errors
    /// Whatever the socket says.
    pub fn try_open(address: SocketAddr) -> io::Result<Self> {
        TcpStream::connect_timeout(&address, PATIENCE).map(Wire::new).map(Self)
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// The other side has closed or reset.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.0.stream.write_all(bytes.as_ref())
    }

    /// Writes a whole request: Host and Content-Length are added where `headers` have none.
    ///
    /// # Errors
    /// As [`Connection::write`].
    pub fn request(&mut self, method: &str, target: &str, headers: &Headers, body: &[u8]) -> io::Result<()> {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.has("host") {
            head += &format!("Host: {}\r\n", self.0.stream.peer_addr()?);
        }
        head += &headers.to_wire();
        if !headers.has("content-length")
            && !headers.has("transfer-encoding")
            && (!body.is_empty() || method == "POST")
        {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        self.write([head.as_bytes(), b"\r\n", body].concat())
    }

    /// Reads one response, interim ones (1xx) too; panics if it is not whole within [`PATIENCE`].
    #[track_caller]
    pub fn read(&mut self) -> Response {
        self.read_within(PATIENCE).unwrap_or_else(|error| panic!("no whole response: {error}"))
    }

    /// Reads one response.
    ///
    /// # Errors
    /// `TimedOut` after `limit`, `UnexpectedEof` where it broke off, and what the socket says.
    pub fn read_within(&mut self, limit: Duration) -> io::Result<Response> {
        self.0.set_deadline(Some(now() + limit));
        self.read_whole(false)
    }

    /// Reads the response to a HEAD request, which has no body.
    ///
    /// # Errors
    /// As [`Connection::read_within`].
    pub fn read_to_head_within(&mut self, limit: Duration) -> io::Result<Response> {
        self.0.set_deadline(Some(now() + limit));
        self.read_whole(true)
    }

    fn read_whole(&mut self, to_head: bool) -> io::Result<Response> {
        let raw_head = self.0.head()?;
        let text = latin1(&raw_head);
        let (first, rest) = text.split_once("\r\n").unwrap_or((&text, ""));
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status =
            status.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("status line {first:?}")))?;
        let headers = Headers::parse(rest);
        let bodiless = to_head || status < 200 || status == 204 || status == 304;
        let framing = if bodiless { Framing::Absent } else { Framing::of(&headers, Framing::UntilClose) };
        let mut body = Vec::new();
        let trailers = self.0.body(framing, &mut body)?;
        Ok(Response { status, headers, body, trailers, raw_head })
    }

    /// Everything that comes up to and with the first `end`; panics if it does not come within `limit`.
    #[track_caller]
    pub fn read_until(&mut self, end: &[u8], limit: Duration) -> String {
        self.0.set_deadline(Some(now() + limit));
        latin1(&self.0.until(end).unwrap_or_else(|error| panic!("{:?} did not come: {error}", latin1(end))))
    }

    /// Everything that comes until the other side closes or resets, or `limit` is over.
    pub fn read_to_end_within(&mut self, limit: Duration) -> Vec<u8> {
        self.0.set_deadline(Some(now() + limit));
        while matches!(self.0.fill(), Ok(count) if count > 0) {}
        self.0.leftover()
    }

    /// Whether the other side closes or resets within `limit`; unread bytes are thrown away.
    pub fn closes_within(&mut self, limit: Duration) -> bool {
        self.0.set_deadline(Some(now() + limit));
        loop {
            match self.0.fill() {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::TimedOut,
            }
        }
    }

    /// Says that nothing more will be written, and goes on reading.
    pub fn half_close(&self) {
        let _ = self.0.stream.shutdown(Shutdown::Write);
    }

    /// Ends it with a reset instead of an orderly end.
    pub fn reset(self) {
        reset(self.0.stream);
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.0.stream
    }
}

impl From<TcpStream> for Connection {
    fn from(stream: TcpStream) -> Self {
        Self(Wire::new(stream))
    }
}

pub(super) fn reset(stream: TcpStream) {
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}

/// One request on a connection of its own, and its final response; panics where there is none.
#[track_caller]
pub fn call(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &Headers,
    body: impl AsRef<[u8]>,
) -> Response {
    try_call(address, method, target, headers, body)
        .unwrap_or_else(|error| panic!("{method} {target} at {address}: {error}"))
}

/// [`call`], where failure is an answer too.
///
/// # Errors
/// As [`Connection::read_within`].
pub fn try_call(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &Headers,
    body: impl AsRef<[u8]>,
) -> io::Result<Response> {
    let mut connection = Connection::try_open(address)?;
    let headers =
        if headers.has("connection") { headers.clone() } else { headers.clone().with("Connection", "close") };
    let written = connection.request(method, target, &headers, body.as_ref());
    connection.0.set_deadline(Some(now() + PATIENCE));
    loop {
        match connection.read_whole(method == "HEAD") {
            Ok(response) if response.status < 200 && response.status != 101 => {}
            Ok(response) => return Ok(response),
            Err(error) => return Err(written.err().unwrap_or(error)),
        }
    }
}

/// The JSON that a GET is answered with; panics unless the status is 200.
#[track_caller]
pub fn get_json(address: SocketAddr, target: &str) -> Value {
    let response = call(address, "GET", target, &Headers::none(), b"");
    assert_eq!(response.status, 200, "GET {target}: {}", response.text());
    response.json()
}
