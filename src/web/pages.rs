//! Pages of other sites: a browser on this machine asks for them what they want, and from here nothing tells who asks.
//!
//! Whoever is no browser is never refused for it, and what is asked is not looked at.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// What a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing but its address guards it: a name on the internet may lead to it too, under which a page is its own.
    Open,
    /// Keys, certificates or TLS guard it.
    Guarded,
    /// Whatever is asked is a send, also what a link leads to. A page is never its own.
    Sends,
}

impl Room {
    /// By what guards it.
    #[must_use]
    pub fn guarded(guarded: bool) -> Self {
        if guarded { Self::Guarded } else { Self::Open }
    }
}

/// Refuses what a page of another site asks; for a router's layer.
pub async fn guard(State(room): State<Room>, request: Request, next: Next) -> Response {
    match check(request.headers(), room) {
        Ok(()) => next.run(request).await,
        Err(detail) => Problem::new(StatusCode::FORBIDDEN, detail).into_response(),
    }
}

/// Whether these are no headers of another site's page.
///
/// # Errors
/// They are, and what to do.
pub fn check(headers: &HeaderMap, room: Room) -> Result<(), &'static str> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST);
    if let Some(origin) = text(header::ORIGIN) {
        let site = origin.split_once("://").map(|(_, site)| site);
        if !site.zip(host).is_some_and(|(site, host)| site.eq_ignore_ascii_case(host)) {
            return Err(
                "a page of another site asks (Origin); ask without a browser, or from a page of this listener",
            );
        }
    } else if text(header::HeaderName::from_static("sec-fetch-site")) == Some("cross-site")
        && (room == Room::Sends
            || text(header::HeaderName::from_static("sec-fetch-mode")) != Some("navigate"))
    {
        return Err(
            "a page of another site asks (Sec-Fetch-Site); ask without a browser, or from a page of this listener",
        );
    }
    if room == Room::Open && host.is_some_and(|host| !is_near(host)) {
        return Err(
            "this listener takes no other machine's name for its own (Host): use its address or localhost, or give it \
                    keys",
        );
    }
    Ok(())
}

/// An address, or a name that no site on the internet can have.
fn is_near(host: &str) -> bool {
    if host.starts_with('[') {
        return true;
    }
    let name = host.split(':').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    name.parse::<std::net::Ipv4Addr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: &[(&'static str, &str)], room: Room) -> bool {
        let pair = |(name, value): &(&'static str, &str)| {
            (header::HeaderName::from_static(name), value.parse().unwrap())
        };
        check(&headers.iter().map(pair).collect(), room).is_ok()
    }

    #[test]
    fn whoever_is_no_browser_is_let_through_and_so_are_the_listeners_own_pages() {
        for headers in [
            &[][..],
            &[("host", "127.0.0.1:9090")],
            &[
                ("host", "localhost:9090"),
                ("origin", "http://localhost:9090"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[("host", "[::1]:9090"), ("origin", "http://[::1]:9090")],
            &[("host", "localhost"), ("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
            &[("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
            &[("host", "gateway:9090"), ("sec-fetch-mode", "cors")],
        ] {
            assert!(checked(headers, Room::Open) && checked(headers, Room::Guarded), "{headers:?}");
            let leads_here = headers.contains(&("sec-fetch-site", "cross-site"));
            assert_eq!(checked(headers, Room::Sends), !leads_here, "{headers:?}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_not() {
        for headers in [
            &[("host", "localhost:9090"), ("origin", "http://evil.example")][..],
            &[("host", "localhost:9090"), ("origin", "http://localhost:3000")],
            &[("host", "localhost:9090"), ("origin", "null")],
            &[("host", "localhost:9090"), ("origin", "")],
            &[("origin", "http://localhost:9090")],
            &[("host", "localhost:9090"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        ] {
            for room in [Room::Open, Room::Guarded, Room::Sends] {
                assert!(!checked(headers, room), "{room:?} {headers:?}");
            }
        }
    }

    #[test]
    fn a_name_on_the_internet_that_leads_here_is_none_of_ours_unless_there_are_keys() {
        for host in [
            "evil.example:9090",
            "evil.example",
            "127.0.0.1.evil.example:9090",
            "localhost.evil.example.",
            "a.b",
        ] {
            let page = [("host", host), ("sec-fetch-site", "same-origin")];
            assert!(!checked(&page, Room::Open) && checked(&page, Room::Guarded), "{host}");
        }
        assert!(checked(&[("host", "app.localhost:9090")], Room::Open));
    }
}
