//! JSON pointers (RFC 6901): where in a JSON body a value is.
//!
//! Only a way is kept; nothing is read of any JSON here.

use std::fmt;

/// How many steps a pointer may have: no deeper body is read.
const STEPS_MAX: usize = 32;

/// A way from a JSON document's root to one value: `/data/guid`. At least one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    steps: Vec<String>,
}

impl Pointer {
    /// Parses a pointer. `~1` stands for `/` and `~0` for `~`.
    ///
    /// # Errors
    /// What is wrong with it, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        const ALLOWED: &str = "a JSON pointer such as /appId or /data/guid";
        let Some(inner) = text.strip_prefix('/') else {
            return Err(format!("no JSON pointer; allowed: {ALLOWED}"));
        };
        let steps: Option<Vec<String>> = inner.split('/').map(unescape).collect();
        let steps =
            steps.ok_or_else(|| format!("a ~ that is not ~0 or ~1; allowed: {ALLOWED}, with ~1 for /"))?;
        if steps.iter().any(|step| step.is_empty() || step.contains(char::is_control)) {
            return Err(format!("an empty step, or one with a control character; allowed: {ALLOWED}"));
        }
        if steps.len() > STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} steps; allowed: {ALLOWED}"));
        }
        Ok(Self { steps })
    }

    /// Its steps, from the root on.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.steps
    }
}

fn unescape(step: &str) -> Option<String> {
    let mut parts = step.split('~');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (mark, rest) = part.split_at_checked(1)?;
        plain.push(match mark {
            "0" => '~',
            "1" => '/',
            _ => return None,
        });
        plain.push_str(rest);
    }
    Some(plain)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_steps_with_two_escapes() {
        let steps = |text: &str| Pointer::parse(text).map(|pointer| pointer.steps);
        assert_eq!(steps("/appId").unwrap(), ["appId"]);
        assert_eq!(steps("/data/0/a~1b~0~01").unwrap(), ["data", "0", "a/b~~1"]);
        for text in ["/appId", "/data/guid", "/a~1b/~0"] {
            assert_eq!(Pointer::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "appId", "/", "/a/", "//a", "/~", "/~2", "/a\n", &"/a".repeat(33)] {
            assert!(steps(bad).is_err(), "{bad}");
        }
    }
}
