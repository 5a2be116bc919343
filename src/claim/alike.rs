//! When two names are one to somebody: readers differ in case, and in what is no letter.
//!
//! It compares, and decides nothing.

/// Whether some readers take a name for the key: both have the same letters and digits. They ignore case, also that of the
/// letters outside of ASCII that fold into it; spaces, quotes, brackets and marks; or the difference between `_`, `-`, `.`
/// and nothing at all.
#[must_use]
pub fn is_alike(name: &str, key: &str) -> bool {
    let mut wanted = letters(key).peekable();
    wanted.peek().is_some() && letters(name).eq(wanted)
}

/// Whether two header fields are one to a server that makes variables of them: it does not tell case, nor what is no letter
/// or digit.
#[must_use]
pub fn is_one_field(name: &str, other: &str) -> bool {
    name.len() == other.len() && name.bytes().map(plain).eq(other.bytes().map(plain))
}

fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

/// Whether some readers take a value for another one, as they do with names, or because they read a number as far as it goes.
#[must_use]
pub fn is_same_value(value: &str, other: &str) -> bool {
    let numbers = number(value).zip(number(other));
    is_alike(value, other) || numbers.is_some_and(|(value, other)| value == other)
}

/// The digits at the beginning, without zeros and spaces before them.
fn number(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = text.split(|c: char| !c.is_ascii_digit()).next().filter(|digits| !digits.is_empty())?;
    Some(digits.trim_start_matches('0'))
}

fn letters(text: &str) -> impl Iterator<Item = char> {
    // What is no text at all is left out by some.
    text.chars().flat_map(Folded::of).filter(|c| c.is_alphanumeric())
}

/// What a character is without its case, under either way to take it away.
enum Folded {
    One(Option<char>),
    More(
        std::iter::FlatMap<
            std::char::ToUppercase,
            std::char::ToLowercase,
            fn(char) -> std::char::ToLowercase,
        >,
    ),
}

impl Folded {
    fn of(c: char) -> Self {
        match c {
            _ if c.is_ascii() => Self::One(Some(c.to_ascii_lowercase())),
            // Its lower case has a mark of its own in some languages, and is a plain letter in others.
            '\u{130}' => Self::One(Some('i')),
            _ => Self::More(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
}

impl Iterator for Folded {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        match self {
            Self::One(c) => c.take(),
            Self::More(all) => all.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_the_same_letters_are_one_to_somebody() {
        for name in [
            "wId",
            "WID",
            "w_id",
            "w-id",
            " wid ",
            "_wId",
            "!wId",
            "$wid",
            "\"wId\"",
            "[wId]",
            "w\u{ad}id",
            "\u{feff}wid",
            "w\u{130}d",
            "w\u{131}d",
            "wid\u{301}",
            "w\u{fffd}id",
        ] {
            assert!(is_alike(name, "wId"), "{name}");
        }
        assert!(is_alike("to\u{212a}en", "token") && is_alike("\u{17f}e\u{17f}sion", "session"));
        assert!(is_alike("\u{410}\u{43a}", "\u{430}\u{41a}"), "also outside of ASCII");
        for name in ["wId2", "wi", "x.wId", "widget", "", "_"] {
            assert!(!is_alike(name, "wId"), "{name}");
        }
        assert!(is_one_field("X.Device~Id", "x-device_id") && !is_one_field("x-device-id", "x-device-ix"));
        assert!(!is_one_field("xdeviceid", "x-device-id"));
        for value in ["2 ", "02", "+2", "2.0", "2x", " 2"] {
            assert!(is_same_value(value, "2"), "{value}");
        }
        assert!(is_same_value("/Msg/Send_Text/", "/msg/send_text") && is_same_value("0x", "0"));
        assert!(!is_same_value("20", "2") && !is_same_value("x", "2") && !is_same_value("", "0"));
        assert!(!is_alike("-", "_"), "a key without letters is like itself only");
    }
}
