//! Fields of a `multipart/form-data` body, found while it passes.
//!
//! It keeps one part's head, the value that is looked for, and as many bytes as a delimiter has. Delimiters stand
//! exactly where they should, or the body is refused: readers differ in what they make of others.

use super::account::{IDENTITY_MAX, malformed};
use super::head::Refusal;
use super::query::{SPELLING, TWICE, is_alike};

/// How many bytes a part's head may have.
const HEAD_MAX: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Begin,
    /// In a part's head.
    Head,
    /// In a part's content; of the field with this number.
    Content(Option<usize>),
    /// After the last delimiter.
    End,
}

/// Reads a multipart body piece by piece.
pub struct Scanner {
    keys: Vec<String>,
    found: Vec<Option<Vec<u8>>>,
    state: State,
    /// `--` and the boundary.
    delimiter: Vec<u8>,
    /// What has come; read up to `at`.
    pending: Vec<u8>,
    at: usize,
    value: Vec<u8>,
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").field("state", &self.state).finish_non_exhaustive()
    }
}

/// What is left to do with what has come.
enum Step {
    Go,
    Wait,
}

impl Scanner {
    /// Looks for these keys.
    #[must_use]
    pub fn new(boundary: &str, keys: Vec<String>) -> Self {
        Self {
            found: vec![None; keys.len()],
            keys,
            state: State::Begin,
            delimiter: format!("--{boundary}").into_bytes(),
            pending: Vec::new(),
            at: 0,
            value: Vec::new(),
        }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// A key is there twice, or something that some read otherwise.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), Refusal> {
        self.pending.extend_from_slice(data);
        loop {
            let step = match self.state {
                State::Begin => self.begin()?,
                State::Head => self.head()?,
                State::Content(field) => self.content(field)?,
                State::End => self.epilogue()?,
            };
            if matches!(step, Step::Wait) {
                // Once a piece, not once a part.
                self.pending.drain(..self.at);
                self.at = 0;
                return Ok(());
            }
        }
    }

    /// What is not read yet.
    fn rest(&self) -> &[u8] {
        self.pending.get(self.at..).unwrap_or_default()
    }

    /// The body ends.
    ///
    /// # Errors
    /// Its last delimiter has not come.
    pub fn end(&self) -> Result<(), Refusal> {
        if self.state == State::End && matches!(self.rest(), b"" | b"\r\n") {
            return Ok(());
        }
        Err(malformed("the multipart body ends before its last delimiter"))
    }

    /// What was found so far, whole, for each key.
    ///
    /// # Errors
    /// A value is no text.
    pub fn values(&self) -> Result<Vec<Option<String>>, Refusal> {
        let text = |value: &Vec<u8>| {
            String::from_utf8(value.clone()).map_err(|_| malformed("the account must be ASCII"))
        };
        self.found.iter().map(|found| found.as_ref().map(text).transpose()).collect()
    }

    fn begin(&mut self) -> Result<Step, Refusal> {
        let there = self.rest().len().min(self.delimiter.len());
        if self.rest().get(..there) != self.delimiter.get(..there) {
            return Err(malformed("the multipart body must begin with its delimiter"));
        }
        self.after_delimiter(self.delimiter.len())
    }

    /// Reads the two bytes after a delimiter that ends at `at`.
    fn after_delimiter(&mut self, at: usize) -> Result<Step, Refusal> {
        self.state = match self.rest().get(at..at + 2) {
            None => return Ok(Step::Wait),
            Some(b"\r\n") => State::Head,
            Some(b"--") => State::End,
            Some(_) => return Err(malformed(DELIMITER)),
        };
        self.at += at + 2;
        Ok(Step::Go)
    }

    fn head(&mut self) -> Result<Step, Refusal> {
        let end = find(self.rest(), b"\r\n\r\n");
        if end.unwrap_or(self.rest().len()) > HEAD_MAX {
            return Err(malformed("a part of the multipart body has a head that is too long"));
        }
        let Some(end) = end else { return Ok(Step::Wait) };
        let head = self.rest().get(..end + 4).unwrap_or_default();
        if find(head, &self.delimiter).is_some() {
            return Err(malformed(DELIMITER));
        }
        self.state = State::Content(self.field(head.get(..end).unwrap_or_default())?);
        self.at += end + 4;
        Ok(Step::Go)
    }

    /// Which field a part is.
    fn field(&self, head: &[u8]) -> Result<Option<usize>, Refusal> {
        let head = std::str::from_utf8(head).map_err(|_| malformed(PART))?;
        let part = Part::parse(head).ok_or_else(|| malformed(PART))?;
        if part.name.eq_ignore_ascii_case("_charset_") {
            return Err(malformed("the multipart body must not name a charset of its own"));
        }
        for (index, key) in self.keys.iter().enumerate() {
            if part.name == *key {
                if self.found.get(index).is_some_and(Option::is_some) {
                    return Err(malformed(TWICE));
                }
                if part.is_file || part.is_encoded {
                    return Err(malformed("the account's part must be plain text, and no file"));
                }
                return Ok(Some(index));
            }
            if is_alike(part.name.as_bytes(), key) {
                return Err(malformed(SPELLING));
            }
        }
        Ok(None)
    }

    fn content(&mut self, field: Option<usize>) -> Result<Step, Refusal> {
        let Some(at) = find(self.rest(), &self.delimiter) else {
            // The end may be the beginning of a delimiter, with the line's end before it.
            let keep = self.rest().len().min(self.delimiter.len() + 1);
            self.keep_value(field, self.rest().len() - keep)?;
            return Ok(Step::Wait);
        };
        let end = at + self.delimiter.len();
        if self.rest().len() < end + 2 {
            return Ok(Step::Wait);
        }
        let Some(content) = at.checked_sub(2).filter(|to| self.rest().get(*to..at) == Some(b"\r\n")) else {
            return Err(malformed(DELIMITER));
        };
        self.keep_value(field, content)?;
        if let Some(found) = field.and_then(|field| self.found.get_mut(field)) {
            *found = Some(std::mem::take(&mut self.value));
        }
        self.after_delimiter(self.delimiter.len() + 2)
    }

    /// Passes over so many bytes of content.
    fn keep_value(&mut self, field: Option<usize>, count: usize) -> Result<(), Refusal> {
        if field.is_some() {
            self.value.extend_from_slice(self.pending.get(self.at..self.at + count).unwrap_or_default());
            if self.value.len() > IDENTITY_MAX {
                return Err(malformed("the account's part is too long"));
            }
        }
        self.at += count;
        Ok(())
    }

    fn epilogue(&self) -> Result<Step, Refusal> {
        if b"\r\n".starts_with(self.rest()) {
            return Ok(Step::Wait);
        }
        Err(malformed("nothing may follow the last delimiter of a multipart body"))
    }
}

const DELIMITER: &str = "the boundary of a multipart body must stand in its delimiters only";
const PART: &str = "each part of a multipart body must say once, and plainly, which field it is";

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, needle)
}

/// What a part's head says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    name: String,
    is_file: bool,
    /// Its content is not what it stands for: a transfer encoding, a charset, or a type that is no text.
    is_encoded: bool,
}

impl Part {
    fn parse(head: &str) -> Option<Self> {
        let mut disposition = None;
        let mut is_encoded = false;
        let mut typed = false;
        for line in head.split("\r\n") {
            let (name, value) = line.split_once(':')?;
            let token = !name.is_empty() && name.bytes().all(is_token);
            // Also what some take for a line's end, and a line that goes on.
            if !token || value.contains(|c: char| c.is_control() && c != '\t') {
                return None;
            }
            match name.to_ascii_lowercase().as_str() {
                "content-disposition" if disposition.replace(value).is_some() => return None,
                "content-transfer-encoding" => is_encoded = true,
                // Parts of a part have delimiters of their own.
                "content-type" if value.to_ascii_lowercase().contains("multipart") => return None,
                "content-type" => is_encoded |= typed || !is_plain_text(value),
                _ => {}
            }
            typed |= name.eq_ignore_ascii_case("content-type");
        }
        let mut part = Self { is_encoded, ..Self::default() };
        let mut named = false;
        let disposition = disposition?;
        // Some end a piece at the space, others at the semicolon.
        if disposition.contains(" ;") || disposition.contains("\t;") {
            return None;
        }
        for (index, (key, value)) in parameters(disposition)?.into_iter().enumerate() {
            match key.as_str() {
                "form-data" if index == 0 && value.is_none() => {}
                _ if index == 0 || value.is_none() => return None,
                // Some unescape it, and each in its way; some decode words of mail.
                "name"
                    if !named
                        && value
                            .as_ref()
                            .is_some_and(|name| !name.contains('\\') && !name.contains("=?")) =>
                {
                    part.name = value?;
                    named = true;
                }
                "filename" | "filename*" => part.is_file = true,
                // Whatever has this in it is a name to somebody.
                other if other.contains("name") => return None,
                _ if value.is_some_and(|value| value.to_ascii_lowercase().contains("name=")) => return None,
                _ => {}
            }
        }
        named.then_some(part)
    }
}

/// Whether a part's type says what is read here anyway.
fn is_plain_text(value: &str) -> bool {
    let Some(pieces) = parameters(value) else { return false };
    pieces.into_iter().enumerate().all(|(index, (name, value))| match (index, name.as_str(), value) {
        (0, "text/plain", None) => true,
        (1.., "charset", Some(charset)) => {
            ["utf-8", "utf8", "us-ascii"].contains(&charset.to_ascii_lowercase().as_str())
        }
        _ => false,
    })
}

/// The pieces of a field such as `form-data; name="a"`: names in lower case, and values where there are some.
pub(super) fn parameters(text: &str) -> Option<Vec<(String, Option<String>)>> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_matches([' ', '\t']);
    loop {
        let end = rest.find([';', '=']).unwrap_or(rest.len());
        let (name, after) = rest.split_at_checked(end)?;
        // A space before `=` is none to some, and a part of the name to others.
        let name = if after.starts_with('=') { name } else { name.trim_end_matches([' ', '\t']) };
        if name.is_empty() || !name.bytes().all(|b| is_token(b) || b == b'/') {
            return None;
        }
        let (value, after) = match after.strip_prefix('=') {
            None => (None, after),
            Some(value) => match value.strip_prefix('"') {
                // A quote that is escaped ends the text to those that know no escapes.
                Some(quoted) => {
                    let (value, after) = quoted.split_once('"')?;
                    if value.ends_with('\\') {
                        return None;
                    }
                    (Some(value), after)
                }
                None => {
                    let end = value.find(';').unwrap_or(value.len());
                    let (value, after) = value.split_at_checked(end)?;
                    let value = value.trim_end_matches([' ', '\t']);
                    // Some take a single quote for one as well.
                    if value.is_empty() || value.starts_with('\'') || !value.bytes().all(is_token) {
                        return None;
                    }
                    (Some(value), after)
                }
            },
        };
        pieces.push((name.to_ascii_lowercase(), value.map(str::to_owned)));
        let after = after.trim_start_matches([' ', '\t']);
        if after.is_empty() {
            return Some(pieces);
        }
        rest = after.strip_prefix(';')?.trim_start_matches([' ', '\t']);
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of `key`, whatever pieces the body comes in. `~` stands for a line's end, `@` for the boundary `b-1`.
    fn key(body: &str) -> Result<Option<String>, ()> {
        let body = body.replace('~', "\r\n").replace('@', "b-1");
        let whole = read(&[body.as_bytes()]);
        for size in [1, 2, 3, 7] {
            let pieces: Vec<_> = body.as_bytes().chunks(size).collect();
            assert_eq!(read(&pieces), whole, "{body} in pieces of {size}");
        }
        whole
    }

    fn read(pieces: &[&[u8]]) -> Result<Option<String>, ()> {
        let mut scanner = Scanner::new("b-1", vec!["key".to_owned()]);
        let fed = pieces.iter().try_for_each(|piece| scanner.feed(piece)).and_then(|()| scanner.end());
        fed.and_then(|()| scanner.values()).map(|mut values| values.remove(0)).map_err(|_| ())
    }

    const FIELD: &str = "--@~Content-Disposition: form-data; name=\"key\"~~wx";

    #[test]
    fn a_part_is_found_among_others_and_its_value_is_its_content() {
        assert_eq!(key(&format!("{FIELD}~--@--")), Ok(Some("wx".to_owned())));
        assert_eq!(key(&format!("{FIELD}~--@--~")), Ok(Some("wx".to_owned())));
        let file = "--@~Content-Disposition: form-data; name=\"f\"; filename=\"a;name=b.png\"~Content-Type: image/png~~\r-\n--~--b-~";
        assert_eq!(key(&format!("{file}{FIELD}~--@--")), Ok(Some("wx".to_owned())));
        assert_eq!(key(&format!("{FIELD}~{file}--@--")), Ok(Some("wx".to_owned())));
        assert_eq!(key(&format!("{FIELD}~{file}~--@--")), Ok(Some("wx".to_owned())));
        let odd = "--@~content-disposition:form-data;name=key~Content-Type: text/plain~~a~b~--@--";
        assert_eq!(key(odd), Ok(Some("a\r\nb".to_owned())));
        let utf8 = "--@~Content-Disposition: form-data; name=\"key\"~Content-Type: text/plain; charset=UTF-8~~wx~--@--";
        assert_eq!(key(utf8), Ok(Some("wx".to_owned())));
        assert_eq!(key("--@--"), Ok(None));
        assert_eq!(key("--@~Content-Disposition: form-data; name=\"x\"~~key~--@--"), Ok(None));
    }

    #[test]
    fn what_readers_could_part_otherwise_is_refused() {
        for bad in [
            "",
            "--@",
            "--@~",
            "x~--@--",
            "~--@--",
            "--@ ~--@--",
            "--@x~--@--",
            "--@~~wx~--@--",
            "--@~Content-Disposition: form-data; name=\"key\"~~wx--@--",
            "--@~Content-Disposition: form-data; name=\"key\"~~wx\n--@--",
            "--@~Content-Disposition: form-data; name=\"key\"~~wx~--@-x",
            "--@~Content-Disposition: form-data; name=\"key\"~~wx~--@--~x",
            "--@~Content-Disposition: form-data; name=\"key\"~~wx~--@--~--@--",
            "--@~Content-Disposition: form-data; name=\"x\"~~a--@b~--@--",
        ] {
            assert_eq!(key(bad), Err(()), "{bad}");
        }
        assert_eq!(key(&format!("{FIELD}~{FIELD}~--@--")), Err(()));
        let long = "x".repeat(10_000);
        assert_eq!(key(&format!("{FIELD}{long}~--@--")), Err(()));
        assert_eq!(
            key(&format!("--@~X-Long: {long}~Content-Disposition: form-data; name=\"key\"~~wx~--@--")),
            Err(())
        );
    }

    #[test]
    fn a_part_says_once_which_field_it_is() {
        for head in [
            "Content-Disposition: form-data",
            "Content-Disposition: attachment; name=\"key\"",
            "Content-Disposition: form-data; name=\"key\"; name=\"x\"",
            "Content-Disposition: form-data; name*=utf-8''key",
            "Content-Disposition: form-data; name=\"x\"; name*=utf-8''key",
            "Content-Disposition: form-data; name=\"key",
            "Content-Disposition: form-data; name=\"x\\\"; name=\"key\"",
            "Content-Disposition: form-data; name=\"key\"; filename=\"x\"",
            "Content-Disposition: form-data; name=\"key\"~Content-Transfer-Encoding: base64",
            "Content-Disposition: form-data; name=\"key\"~Content-Disposition: form-data; name=\"x\"",
            "Content-Disposition: form-data;~ name=\"key\"",
            "Content-Disposition : form-data; name=\"key\"",
            "Content-Disposition: form-data; name=\"x\"\nX: y",
            "Content-Disposition: form-data; name=\"KEY\"",
            "Content-Disposition: form-data; name=\"key[]\"",
            "Content-Disposition: form-data; name=\" key\"",
            "Content-Disposition: form-data; name=\"x\"; ; a=b",
            "Content-Disposition: form-data; x-name=\"x\"; name=\"key\"",
            "Content-Disposition: form-data; a=\" name=x\"; name=\"key\"",
            "Content-Disposition: form-data; name=\"k\\ey\"",
            "Content-Disposition: form-data; name=\"_charset_\"",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: text/plain; charset=utf-7",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: text/plain; charset=base64",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: text/plain; charset*=utf-8''utf-7",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: application/octet-stream",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: multipart/mixed; boundary=c",
            "Content-Disposition: form-data; name=\"key\"~Content-Type: text/plain~Content-Type: text/plain",
            "Content-Disposition: form-data; name=\"x\"~--@--: y",
            "Content-Disposition: form-data; name=",
            "Content-Disposition: form-data; name =\"key\"",
            "Content-Disposition: form-data; name= \"key\"",
            "Content-Disposition: form-data; name='key'",
            "Content-Disposition: form-data; name=\"=?utf-8?B?a2V5?=\"",
            "Content-Disposition: form-data; name=\"key\" ; x=y",
            "Content-Disposition: form-data; name=\"key\"; x",
            "Content-Disposition: form-data ; name=\"key\"",
            "Content-Disposition: form-data; name=\"x\"~Content-Type: Multipart/Mixed; boundary=c",
        ] {
            assert_eq!(key(&format!("--@~{head}~~wx~--@--")), Err(()), "{head}");
        }
    }
}
