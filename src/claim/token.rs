//! The token of a request.
//!
//! It only reads: whose it is, and whether it counts, is decided elsewhere.

use super::fields::{Fields, Once};
use super::head::Refusal;
use crate::code::Code;
use crate::fence::token::{Claim, Epoch, TokenError, parse_epoch, parse_instance, parse_seq, parse_session};

/// How many digits a seq may have in the layouts with sequential candidates.
const SEQ_DIGITS: usize = 10;

/// The token, if there is one that is well-formed.
///
/// # Errors
/// `missing_token` without seq or session, `malformed_token` for anything that is not exactly a token.
pub fn token(fields: &Fields<'_>) -> Result<Claim, Refusal> {
    let malformed = |why: TokenError| Refusal::new(Code::MalformedToken, why.to_string());
    let missing = |what: &'static str| Refusal::new(Code::MissingToken, what);
    let seq = once(fields.seq, "X-Fencing-Seq must be given once")?;
    let session = once(fields.session, "X-Fencing-Session must be given once")?;
    let instance = once(fields.instance, "X-Fencing-Instance must be given once")?;
    let epoch = once(fields.epoch, "X-Fencing-Epoch must be given once")?;
    let seq = seq.ok_or_else(|| missing("X-Fencing-Seq is missing"))?;
    let session = session.ok_or_else(|| missing("X-Fencing-Session is missing"))?;
    Ok(Claim {
        seq: parse_seq(seq, SEQ_DIGITS).map_err(malformed)?,
        session: parse_session(session).map_err(malformed)?,
        instance: instance.map(parse_instance).transpose().map_err(malformed)?,
        epoch: epoch.map(parse_epoch).transpose().map_err(malformed)?,
    })
}

/// The epoch alone, where it is given.
///
/// # Errors
/// `malformed_token` for anything that is not exactly an epoch.
pub fn epoch(fields: &Fields<'_>) -> Result<Option<Epoch>, Refusal> {
    let epoch = once(fields.epoch, "X-Fencing-Epoch must be given once")?;
    epoch.map(parse_epoch).transpose().map_err(|why| Refusal::new(Code::MalformedToken, why.to_string()))
}

fn once<'a>(field: Once<'a>, again: &'static str) -> Result<Option<&'a [u8]>, Refusal> {
    if field.again {
        return Err(Refusal::new(Code::MalformedToken, again));
    }
    Ok(field.value.map(http::HeaderValue::as_bytes))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName};

    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn a_token_is_whole_or_refused() {
        let code =
            |fields: &[(&str, &str)]| token(&Fields::of(&headers(fields))).map_err(|refusal| refusal.code);
        let good = code(&[("x-fencing-seq", "007"), ("x-fencing-session", "0xA")]).unwrap();
        assert_eq!((good.seq.0, good.session.0, good.instance, good.epoch), (7, 10, None, None));
        assert_eq!(code(&[("x-fencing-seq", "7")]), Err(Code::MissingToken));
        assert_eq!(code(&[("x-fencing-session", "7")]), Err(Code::MissingToken));
        assert_eq!(code(&[("x_fencing_seq", "7"), ("x-fencing-session", "7")]), Err(Code::MissingToken));
        let twice = [("x-fencing-seq", "7"), ("x-fencing-seq", "7"), ("x-fencing-session", "7")];
        assert_eq!(code(&twice), Err(Code::MalformedToken));
        let bad = [("x-fencing-seq", "7"), ("x-fencing-session", "7"), ("x-fencing-epoch", "")];
        assert_eq!(code(&bad), Err(Code::MalformedToken));
    }
}
