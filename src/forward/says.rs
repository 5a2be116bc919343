//! What an answer's head says of its connection and its body, found in one pass.
//!
//! It looks at nothing that means something to the caller only.

use std::time::Duration;

use http::header;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Answered whole; another request may follow.
    Reusable,
    /// Answered whole; no other request may follow.
    Whole,
    /// Not answered whole.
    Broken,
    /// Not answered whole in its time: whatever the connection says may be out of step.
    Late,
}

impl End {
    /// Whether there is no whole answer.
    pub(super) fn is_broken(self) -> bool {
        matches!(self, Self::Broken | Self::Late)
    }
}

/// What an answer's head says, found in one pass.
#[derive(Default)]
pub(super) struct Says {
    length: bool,
    coding: bool,
    close: bool,
    pub(super) events: bool,
    /// How long the sender keeps the connection, less what a request may take to get there.
    pub(super) idle: Option<Duration>,
}

impl Says {
    pub(super) fn of(head: &http::response::Parts) -> Self {
        let mut says = Self::default();
        for (name, value) in &head.headers {
            let value = value.as_bytes();
            if name == header::CONTENT_LENGTH {
                says.length = true;
            } else if name == header::TRANSFER_ENCODING {
                says.coding = true;
            } else if name == header::CONNECTION {
                let is_close = |token: &[u8]| token.trim_ascii().eq_ignore_ascii_case(b"close");
                says.close |= value.split(|byte| *byte == b',').any(is_close);
            } else if name == "keep-alive" {
                says.idle = kept_for(value);
            } else if name == header::CONTENT_TYPE {
                const EVENTS: &[u8] = b"text/event-stream";
                let start = value.trim_ascii_start().get(..EVENTS.len());
                says.events |= start.is_some_and(|start| start.eq_ignore_ascii_case(EVENTS));
            }
        }
        says
    }

    /// Whether another request may follow on the connection. Framed in both ways, the sender may mean another end than the
    /// one that was read.
    pub(super) fn end(&self, version: http::Version) -> End {
        let reusable = version == http::Version::HTTP_11 && !(self.length && self.coding) && !self.close;
        if reusable { End::Reusable } else { End::Whole }
    }
}

/// The time that `Keep-Alive: timeout=n` gives, less a second, or half of it.
fn kept_for(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?;
    let timeout = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    let kept = Duration::from_secs(timeout.trim().parse().ok()?);
    Some(kept.saturating_sub(Duration::from_secs(1)).max(kept / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_for_less_than_its_sender_says() {
        let kept = |text: &str| kept_for(text.as_bytes()).map(|kept| kept.as_millis());
        assert_eq!(kept("timeout=5, max=100"), Some(4000));
        assert_eq!(kept("max=100, timeout=2"), Some(1000));
        assert_eq!(kept("timeout=1"), Some(500));
        assert_eq!(kept("timeout=0"), Some(0));
        for nothing in ["", "max=100", "timeout", "timeout=", "timeout=x", "timeout=-1", "timeout=1.5"] {
            assert_eq!(kept(nothing), None, "{nothing}");
        }
    }
}
