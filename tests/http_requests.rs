//! Requests as bytes: what is refused, with which code, and what exactly reaches the sender of what is not.
//!
//! Nothing here is about answers, bodies of size, or deadlines.

mod support;

use std::sync::Arc;

use support::{
    Connection, Headers, PATIENCE, Setup, Shared, Stage, answer_to, assert_admitted, assert_bytes_refused,
    assert_no_request, assert_refused, call, named_route, only, route,
};

static SHARED: Shared = Shared::new();

fn routes(setup: Setup, url: &str) -> Setup {
    setup
        .route(&named_route(url, "wx", ""))
        .route(&route(url, "/header/{*rest}", "\"header:x-device-id\"", ""))
        .route(&named_route(url, "cut", "rewrite = \"/{*rest}\""))
        .route(&named_route(url, "host", "preserve_host = true"))
        .route(&named_route(url, "pass", "mode = \"pass\""))
        .route(&named_route(url, "shadow", "mode = \"shadow\""))
}

fn stage() -> Arc<Stage> {
    SHARED.stage(routes)
}

// What reaches the sender

#[test]
fn the_sender_gets_the_request_as_it_was_and_the_gateways_own_words_about_it() {
    let holder = stage().holder();
    let target = format!("{}?a=%20&b=%7E;c&&d", holder.path());
    let headers = Headers::none()
        .with("X-Fencing-Epoch", holder.stage.bot.epoch(&holder.account).unwrap())
        .with("X-Fencing-Instance", "host-%61")
        .with("X-Fencing-Account", "wxid_forged")
        .with("X-Fencing-Anything", "forged")
        .with("X_Fencing_Seq", "999")
        .with("X-Fencing_Session", "999")
        .with("X-Forwarded-For", "6.6.6.6")
        .with("X-Forwarded-Proto", "https")
        .with("X-Forwarded-Host", "forged")
        .with("X-Request-Id", "mine-1")
        .with("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .with("tracestate", "a=b")
        .with("Accept", "a")
        .with("Accept", "b")
        .with("X-Odd", "  t\u{ff}o  words ")
        .with("Keep-Alive", "timeout=5")
        .with("Proxy-Connection", "keep-alive")
        .with("TE", "trailers")
        .with("X-Private", "1")
        .with("Connection", "close, X-Private")
        .with("Content-Encoding", "gzip")
        .with("Cookie", "a=b");
    let response = holder.call("POST", &target, &headers, b"\x00\xffnot gzip");
    assert_admitted(&response);
    assert_eq!(response.header("x-request-id"), Some("mine-1"));
    let request = only(&holder);
    assert_eq!((request.method.as_str(), &request.target), ("POST", &target));
    assert_eq!(request.body, b"\x00\xffnot gzip");
    let holder_is = |name: &str| request.headers.all(name).join(" | ");
    let bot = &holder.stage.bot;
    assert_eq!(holder_is("x-fencing-account"), holder.account);
    assert_eq!(holder_is("x-fencing-seq"), bot.seq(&holder.account).to_string());
    assert_eq!(holder_is("x-fencing-session"), bot.session_id().to_string());
    assert_eq!(holder_is("x-fencing-instance"), "host-a");
    assert_eq!(holder_is("x-fencing-epoch"), bot.epoch(&holder.account).unwrap().to_string());
    assert_eq!(holder_is("host"), holder.stage.sender.address().to_string());
    assert_eq!(holder_is("x-forwarded-for"), "127.0.0.1");
    assert_eq!(holder_is("x-forwarded-proto"), "http");
    assert_eq!(holder_is("x-forwarded-host"), holder.stage.gateway.proxy().to_string());
    assert_eq!(holder_is("x-request-id"), "mine-1");
    assert_eq!(holder_is("via"), "1.1 fencegate");
    assert_eq!(holder_is("traceparent"), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    assert_eq!(holder_is("tracestate"), "a=b");
    assert_eq!(holder_is("accept"), "a | b");
    assert_eq!(holder_is("content-encoding"), "gzip");
    assert_eq!(holder_is("cookie"), "a=b");
    assert_eq!(holder_is("content-length"), "10");
    // Written as UTF-8, read as Latin-1: byte for byte what was sent.
    assert_eq!(holder_is("x-odd"), "t\u{c3}\u{bf}o  words");
    let names = request.headers.names();
    assert!(names.iter().all(|name| *name == name.to_ascii_lowercase()), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.replace('_', "-").starts_with("x-fencing-")).count(), 5);
    for gone in ["keep-alive", "proxy-connection", "te", "x-private", "connection", "transfer-encoding"] {
        assert!(!request.headers.has(gone), "{gone}");
    }
}

#[test]
fn every_method_but_connect_and_trace_is_forwarded_as_it_is() {
    let holder = stage().holder();
    for (method, body) in [
        ("GET", ""),
        ("PUT", "x"),
        ("DELETE", ""),
        ("PATCH", "x"),
        ("OPTIONS", ""),
        ("BREW", "x"),
        ("GET", "x"),
    ] {
        assert_admitted(&holder.call(method, &holder.path(), &Headers::none(), body));
    }
    assert_eq!(holder.call("HEAD", &holder.path(), &Headers::none(), "").status, 200);
    let seen: Vec<_> =
        holder.seen().into_iter().map(|request| (request.method.clone(), request.text())).collect();
    let want = [
        ("GET", ""),
        ("PUT", "x"),
        ("DELETE", ""),
        ("PATCH", "x"),
        ("OPTIONS", ""),
        ("BREW", "x"),
        ("GET", "x"),
        ("HEAD", ""),
    ];
    assert_eq!(seen, want.map(|(method, body)| (method.to_owned(), body.to_owned())));
    for request in holder.seen().iter().filter(|request| request.body.is_empty()) {
        assert!(!request.headers.has("transfer-encoding"), "{}", request.method);
    }
}

#[test]
fn connect_and_trace_are_not_allowed() {
    let holder = stage().holder();
    let trace = holder.head(&holder.path(), "Host: h").replacen("POST", "TRACE", 1);
    assert_bytes_refused(&holder, trace, 405, "method_not_allowed");
    let connect = holder.head("h:80", "Host: h:80").replacen("POST", "CONNECT", 1);
    assert_bytes_refused(&holder, connect, 405, "method_not_allowed");
}

#[test]
fn a_request_id_is_kept_if_it_is_fit_and_made_anew_otherwise() {
    let holder = stage().holder();
    let long = "x".repeat(128);
    for good in ["a", "A-z_0.9", long.as_str()] {
        let response = holder.call("GET", &holder.path(), &Headers::none().with("X-Request-Id", good), "");
        assert_eq!(response.header("x-request-id"), Some(good));
    }
    let before = holder.seen().len();
    let too_long = "x".repeat(129);
    let huge = "x".repeat(10 * 1024);
    let bad = ["", "a b", "a/b", "\u{e9}", "a\tb", too_long.as_str(), huge.as_str()];
    let twice = Headers::none().with("X-Request-Id", "a").with("X-Request-Id", "a");
    let single = bad.iter().map(|id| Headers::none().with("X-Request-Id", id));
    for headers in single.chain([twice, Headers::none()]) {
        let response = holder.call("GET", &holder.path(), &headers, "");
        let made = response.header("x-request-id").unwrap();
        let parts: Vec<_> = made.split('-').map(str::len).collect();
        assert_eq!((parts, made.as_bytes()[14]), (vec![8, 4, 4, 4, 12], b'7'), "{made}");
        assert_eq!(holder.seen().last().unwrap().headers.all("x-request-id"), [made]);
    }
    assert_eq!(holder.seen().len(), before + 9);
    let refused = holder.call("GET", "/nowhere", &Headers::none().with("X-Request-Id", "mine"), "");
    assert_eq!((refused.status, refused.header("x-request-id")), (404, Some("mine")));
}

#[test]
fn a_route_may_rewrite_the_path_and_preserve_the_host() {
    let holder = stage().holder();
    let target = format!("/cut/{}/a%20b/c;d=e/?x=%2F", holder.account);
    assert_admitted(&holder.call("POST", &target, &Headers::none(), "x"));
    let target = format!("/host/{}/a", holder.account);
    assert_admitted(&holder.call("POST", &target, &Headers::none().with("Host", "Some.Name:81"), "x"));
    let seen = holder.seen();
    assert_eq!(seen[0].target, "/a%20b/c;d=e/?x=%2F");
    assert_eq!(seen[0].header("host"), Some(holder.stage.sender.address().to_string().as_str()));
    assert_eq!((seen[1].target.as_str(), seen[1].header("host")), (target.as_str(), Some("Some.Name:81")));
    assert_eq!(seen[1].header("x-forwarded-host"), Some("Some.Name:81"));
}

#[test]
fn pass_and_shadow_forward_everything_and_tell_the_sender_the_account_only() {
    let holder = stage().holder();
    let bot = &holder.stage.bot;
    // Shadow mode judges by the view as it is.
    holder.stage.gateway.wait_for_holder(&holder.account, bot.seq(&holder.account));
    let stale = Headers::none().with("X-Fencing-Seq", "0").with("X-Fencing-Session", bot.session_id() ^ 1);
    let ask = |mode: &str, headers: &Headers| {
        let target = format!("/{mode}/{}/send", holder.account);
        let response = call(holder.stage.gateway.proxy(), "POST", &target, headers, "x");
        assert_eq!(response.status, 200);
        response.header("x-fencing-verdict").unwrap().to_owned()
    };
    assert_eq!(ask("pass", &Headers::none()), "passed");
    assert_eq!(ask("pass", &stale), "passed");
    assert_eq!(ask("shadow", &Headers::none()), "shadow; would=missing_token");
    assert_eq!(ask("shadow", &stale), "shadow; would=session_mismatch");
    assert_eq!(ask("shadow", &bot.full_token(&holder.account)), "shadow; would=admitted");
    let seen = holder.seen();
    assert_eq!(seen.len(), 5);
    for request in seen {
        let names = request.headers.names();
        let fencing: Vec<_> = names.iter().filter(|name| name.starts_with("x-fencing")).collect();
        assert_eq!(fencing, [&"x-fencing-account"]);
    }
    let lost = format!("/shadow/{}-unknown/send", holder.account);
    let response = call(holder.stage.gateway.proxy(), "POST", &lost, &stale, "x");
    assert_eq!(
        (response.status, response.header("x-fencing-verdict")),
        (200, Some("shadow; would=unknown_account"))
    );
    let other = stage().holder();
    for mode in ["pass", "shadow"] {
        let target = format!("/{mode}/{}/send", other.account);
        let odd = Headers::none().with("X-Fencing-Seq", "+1").with("X-Fencing-Session", "1");
        let response = call(other.stage.gateway.proxy(), "POST", &target, &odd, "x");
        assert_refused(&other, mode, &response, 400, "malformed_token");
    }
}

#[test]
fn pipelined_sends_are_judged_one_by_one() {
    let (holder, other) = (stage().holder(), stage().holder());
    let stale = other
        .head(&other.path(), "Host: h\nContent-Length: 1")
        .replace("X-Fencing-Seq: ", "X-Fencing-Seq: 9");
    let good = holder.head(&holder.path(), "Host: h\nContent-Length: 2");
    let last = other.head(&other.path(), "Host: h\nTransfer-Encoding: chunked\nConnection: close");
    let mut connection = holder.connect();
    connection.write(format!("{good}ab{stale}c{last}1\r\nd\r\n0\r\n\r\n")).unwrap();
    let answers = [connection.read(), connection.read(), connection.read()];
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 409, 200]);
    assert_eq!(answers[1].code().as_deref(), Some("not_holder"));
    assert!(connection.closes_within(PATIENCE));
    assert_eq!(only(&holder).text(), "ab");
    assert_eq!(only(&other).text(), "d");
}

#[test]
fn an_http_1_0_caller_is_served_and_its_connection_closed() {
    let holder = stage().holder();
    let old = |lines: &str| holder.head(&holder.path(), lines).replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut connection = holder.connect();
    connection.write(old("Content-Length: 1") + "x").unwrap();
    let answer = connection.read();
    assert_admitted(&answer);
    assert!(!answer.headers.has("transfer-encoding"));
    assert!(connection.closes_within(PATIENCE));
    let request = only(&holder);
    assert!(String::from_utf8_lossy(&request.raw_head).contains(" HTTP/1.1\r\n"));
    assert_eq!((request.text().as_str(), request.header("via")), ("x", Some("1.0 fencegate")));
    let other = stage().holder();
    let old = |lines: &str| other.head(&other.path(), lines).replacen("HTTP/1.1", "HTTP/1.0", 1);
    assert_no_request(&other, old("Transfer-Encoding: chunked") + "1\r\nx\r\n0\r\n\r\n");
    let target = format!("http://elsewhere{}", other.path());
    let absolute = other.head(&target, "").replacen("HTTP/1.1", "HTTP/1.0", 1);
    assert_bytes_refused(&other, absolute, 400, "malformed_request");
}

// Framing

#[test]
fn content_length_beside_transfer_encoding_never_makes_two_requests_of_one() {
    for lines in [
        "Host: h\nContent-Length: 6\nTransfer-Encoding: chunked",
        "Host: h\nTransfer-Encoding: chunked\nContent-Length: 6",
        "Host: h\nTransfer-Encoding: chunked\nContent-Length: 0",
    ] {
        let (holder, other) = (stage().holder(), stage().holder());
        let hidden = other.head(&other.path(), "Host: h\nContent-Length: 0");
        let mut connection = holder.connect();
        connection
            .write(format!("{}1\r\nx\r\n0\r\n\r\n{hidden}", holder.head(&holder.path(), lines)))
            .unwrap();
        let first = connection.read();
        assert!(connection.read_within(PATIENCE).is_err(), "a second answer: {lines}");
        assert!(connection.closes_within(PATIENCE), "{lines}");
        assert!(other.seen().is_empty(), "the hidden request was forwarded: {lines}");
        if first.status == 200 {
            let request = only(&holder);
            assert_eq!((request.text().as_str(), request.header("content-length")), ("x", Some("1")));
            assert!(!request.headers.has("transfer-encoding"));
        } else {
            assert_eq!(first.status, 400);
            assert!(holder.seen().is_empty());
        }
    }
}

#[test]
fn odd_content_lengths_are_refused() {
    let holder = stage().holder();
    for lines in [
        "Content-Length: 1\nContent-Length: 2",
        "Content-Length: 2\nContent-Length: 1",
        "Content-Length: 1, 1",
        "Content-Length: 1, 2",
        "Content-Length: +1",
        "Content-Length: -1",
        "Content-Length: 0x1",
        "Content-Length: 1 1",
        "Content-Length: 1.0",
        "Content-Length:",
        "Content-Length: \u{ff11}",
        "Content-Length: 18446744073709551616",
    ] {
        assert_no_request(&holder, holder.head(&holder.path(), &format!("Host: h\n{lines}")) + "xx");
    }
}

#[test]
fn odd_transfer_codings_are_refused() {
    let holder = stage().holder();
    for lines in [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: \u{b}chunked",
        "Transfer-Encoding:",
        "Transfer-Encoding: chunked,",
        "Transfer_Encoding: chunked\nTransfer-Encoding: gzip",
    ] {
        let request = holder.head(&holder.path(), &format!("Host: h\n{lines}")) + "1\r\nx\r\n0\r\n\r\n";
        assert_no_request(&holder, request);
    }
}

#[test]
fn chunk_extensions_and_trailers_do_not_reach_the_sender() {
    let holder = stage().holder();
    let head =
        holder.head(&holder.path(), "Host: h\nTransfer-Encoding: chunked\nTrailer: X-Late, X-Fencing-Seq");
    let body = "3;a=b;c=\"d\"\r\nabc\r\n01;x\r\nd\r\n0;end\r\nX-Late: 1\r\nX-Fencing-Seq: 9\r\n\r\n";
    let mut connection = holder.connect();
    connection.write(format!("{head}{body}")).unwrap();
    assert_admitted(&connection.read());
    connection.write(holder.head(&holder.path(), "Host: h\nContent-Length: 0")).unwrap();
    assert_admitted(&connection.read());
    let request = &holder.seen()[0];
    assert_eq!((request.text().as_str(), request.header("content-length")), ("abcd", Some("4")));
    assert!(request.trailers.names().is_empty());
    for gone in ["trailer", "x-late", "transfer-encoding"] {
        assert!(!request.headers.has(gone), "{gone}");
    }
}

#[test]
fn a_body_with_broken_chunks_reaches_no_sender() {
    let holder = stage().holder();
    for body in [
        "0x1\r\nx\r\n0\r\n\r\n",
        "+1\r\nx\r\n0\r\n\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        "g\r\nx\r\n0\r\n\r\n",
        "\r\nx\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nx\r\n0\r\n\r\n",
        "2\r\nxxx\r\n0\r\n\r\n",
        "1\r\nxx\r\n0\r\n\r\n",
        "1\nx\n0\n\n",
        "1\r\nx0\r\n\r\n",
        "1;a=\"\nb\"\r\nx\r\n0\r\n\r\n",
    ] {
        let head = holder.head(&holder.path(), "Host: h\nTransfer-Encoding: chunked");
        assert_no_request(&holder, format!("{head}{body}"));
    }
}

#[test]
fn lines_that_two_programs_could_read_differently_are_refused() {
    let holder = stage().holder();
    for lines in
        ["Host: h\nX-A: b\n c: d", "Host: h\nX-A : b", "Host: h\n X-A: b", "Host: h\n: b", "Host: h\nnothing"]
    {
        assert_no_request(&holder, holder.head(&holder.path(), lines));
    }
    for odd in ["X-A: a\0b", "X-A: a\rb", "X-A\0: b", "X A: b", "X-\u{e4}: b", "X-A: a\u{7f}b", "X(A): b"] {
        let head = holder.head(&holder.path(), "Host: h\nX-Here: 1").replace("X-Here: 1", odd);
        assert_no_request(&holder, head);
    }
    for first in [
        "POST  {} HTTP/1.1",
        "POST {} HTTP/1.1 ",
        "POST {} HTTP/2.0",
        "POST {} HTTP/1.2",
        "POST {} http/1.1",
        "POST {}",
        "POST\t{} HTTP/1.1",
        "PO(ST {} HTTP/1.1",
        "POST {} a HTTP/1.1",
    ] {
        let line = first.replace("{}", &holder.path());
        let head = holder.head("/", "Host: h").replacen("POST / HTTP/1.1", &line, 1);
        assert_no_request(&holder, head);
    }
}

#[test]
fn bare_line_feeds_hide_no_header_and_no_request() {
    let (holder, other) = (stage().holder(), stage().holder());
    let seq = holder.stage.bot.seq(&holder.account);
    let twice = holder
        .head(&holder.path(), "Host: h")
        .replace("X-Fencing-Session", &format!("X-Fencing-Seq: {seq}\nX-Fencing-Session"));
    assert_bytes_refused(&holder, twice, 400, "malformed_token");
    let hidden = other.head(&other.path(), "Host: h").replace("\r\n", "\n");
    let head = holder.head(&holder.path(), "Host: h\nX-A: b").replace("X-A: b\r\n", "X-A: b\n");
    let length = hidden.len();
    let mut connection = holder.connect();
    let head = head.replacen("X-A", &format!("Content-Length: {length}\nX-A"), 1);
    connection.write(format!("{head}{hidden}")).unwrap();
    let answer = connection.read();
    assert!(other.seen().is_empty());
    if answer.status == 200 {
        let request = only(&holder);
        assert_eq!((request.text(), request.header("x-a")), (hidden, Some("b")));
        assert!(!String::from_utf8_lossy(&request.raw_head).replace("\r\n", "").contains('\n'));
    } else {
        assert_eq!(answer.status, 400);
    }
}

// Host and target

#[test]
fn there_is_exactly_one_host_and_it_is_the_targets() {
    let holder = stage().holder();
    let path = holder.path();
    let refused = |target: &str, lines: &str| {
        assert_bytes_refused(&holder, holder.head(target, lines), 400, "malformed_request");
    };
    refused(&path, "");
    refused(&path, "Host: h\nHost: h");
    refused(&path, "Host: h\nHost: other");
    refused(&path, "Host:");
    refused(&path, "Host: user@h");
    refused(&path, "Host: a b");
    refused(&path, "Host: h/path");
    refused(&path, "Host: h, other");
    refused(&path, "Host: h,other");
    refused(&path, "Host: \u{e4}");
    refused(&format!("http://other{path}"), "Host: h");
    refused(&format!("http://h:81{path}"), "Host: h");
    refused(&format!("http://user@h{path}"), "Host: h");
    refused(&format!("http://user:secret@h{path}"), "Host: user:secret@h");
    refused(&format!("http://h{path}"), "");
    refused(&format!("ftp://h{path}"), "Host: h");
    refused(&format!("ws://h{path}"), "Host: h");
    refused("h:80", "Host: h:80");
    refused("*", "Host: h");
    for odd in ["wx/a/b", "//h/wx/a/b", "http:///wx/a/b", "http:/wx/a/b", "", "?a=b"] {
        let other = stage().holder();
        assert_no_request(&other, other.head(odd, "Host: h"));
    }
}

#[test]
fn an_absolute_target_of_the_own_host_reaches_the_sender_as_a_path() {
    for target in ["http://h:80", "HTTP://H:80", "https://h:80"] {
        let holder = stage().holder();
        let target = format!("{target}{}?a=b", holder.path());
        let answer = answer_to(&holder, holder.head(&target, "Host: h:80\nContent-Length: 0")).unwrap();
        assert_admitted(&answer);
        let request = only(&holder);
        assert_eq!(request.target, format!("{}?a=b", holder.path()));
        assert_eq!(request.header("x-forwarded-host"), Some("h:80"));
    }
}

#[test]
fn bytes_after_a_number_sign_never_reach_the_sender() {
    for tail in ["#fragment", "?a=b#c", "#/../x?d"] {
        let holder = stage().holder();
        let head = holder.head(&format!("{}{tail}", holder.path()), "Host: h\nContent-Length: 0");
        match answer_to(&holder, head) {
            Some(answer) if answer.status == 200 => {
                let request = only(&holder);
                assert!(!request.target.contains('#') && request.target.starts_with(&holder.path()));
                assert!(!String::from_utf8_lossy(&request.raw_head).contains("fragment"));
            }
            Some(answer) => assert_eq!(answer.status, 400, "{tail}"),
            None => {}
        }
    }
}

#[test]
fn paths_that_two_programs_could_read_differently_are_malformed() {
    let holder = stage().holder();
    let account = &holder.account;
    for path in [
        format!("/wx/{account}/a%2Fb"),
        format!("/wx/{account}/a%2fb"),
        format!("/wx/{account}/a%5Cb"),
        format!("/wx/{account}/%2e%2e/b"),
        format!("/wx/{account}/%2E"),
        format!("/wx/{account}/a%00"),
        format!("/wx/{account}//b"),
        format!("//wx/{account}/b"),
        format!("/wx/{account}/../b"),
        format!("/wx/{account}/./b"),
        format!("/wx/{account}/b/.."),
        format!("/wx/{account}/b\\c"),
        format!("/wx/{account}/\u{e4}"),
        format!("/wx/{account}/%"),
        format!("/wx/{account}/%4"),
        format!("/wx/{account}/%zz"),
        format!("/wx/{account}/b?c=\u{e4}"),
    ] {
        assert_bytes_refused(&holder, holder.head(&path, "Host: h"), 400, "malformed_path");
    }
}

#[test]
fn paths_that_only_look_odd_reach_the_sender_unchanged() {
    for tail in ["a%252Fb", "a;x=1", "a%20b", "...", "a..b", ".well", "%E4%BD%A0", "a=b:c@d!$&'()*+,", "a/"] {
        let holder = stage().holder();
        let target = format!("/wx/{}/{tail}?q=../%2F//;%00\\", holder.account);
        assert_admitted(&holder.call("POST", &target, &Headers::none(), "x"));
        assert_eq!(only(&holder).target, target);
    }
}

// Connection, Upgrade, Expect

#[test]
fn a_connection_header_may_not_name_what_the_gateway_relies_on() {
    let holder = stage().holder();
    for named in [
        "X-Fencing-Seq",
        "x-fencing-session",
        "close, X-FENCING-EPOCH",
        "X-Fencing-Anything",
        "x_fencing_seq",
        "Content-Length",
        "close,content-length",
        "Host",
        "keep-alive, hOsT",
        "\u{e4}",
    ] {
        let head = holder.head(&holder.path(), &format!("Host: h\nConnection: {named}\nContent-Length: 0"));
        assert_bytes_refused(&holder, head, 400, "malformed_request");
    }
    let second = holder.head(&holder.path(), "Host: h\nConnection: close\nConnection: a, X-Fencing-Seq");
    assert_bytes_refused(&holder, second, 400, "malformed_request");
    let target = "/header/send";
    let lines = format!("Host: h\nX-Device-Id: {}\nConnection: X-Device-ID", holder.account);
    assert_bytes_refused(&holder, holder.head(target, &lines), 400, "malformed_request");
}

#[test]
fn an_upgrade_to_http_2_with_its_settings_is_ignored_and_any_other_refused() {
    let holder = stage().holder();
    let java = Headers::none()
        .with("Connection", "Upgrade, HTTP2-Settings")
        .with("Upgrade", "h2c")
        .with("HTTP2-Settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA");
    let mut connection = holder.connect();
    let headers = java.iter().fold(holder.token.clone(), |headers, (name, value)| headers.with(name, value));
    for _ in 0..2 {
        connection.request("POST", &holder.path(), &headers, b"x").unwrap();
        assert_admitted(&connection.read());
    }
    for request in holder.seen() {
        for gone in ["connection", "upgrade", "http2-settings"] {
            assert!(!request.headers.has(gone), "{gone}");
        }
    }
    let other = stage().holder();
    for lines in [
        "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Connection: Upgrade\nUpgrade: h2c",
        "Upgrade: websocket",
        "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c, websocket\nHTTP2-Settings: AAMAAABk",
        "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nUpgrade: websocket\nHTTP2-Settings: AAMAAABk",
        "Connection: Upgrade\nUpgrade: TLS/1.2",
    ] {
        let head = other.head(&other.path(), &format!("Host: h\n{lines}\nContent-Length: 0"));
        assert_bytes_refused(&other, head, 400, "malformed_request");
    }
}

#[test]
fn a_holder_that_expects_100_gets_it_and_then_its_answer() {
    let holder = stage().holder();
    let mut connection = holder.connect();
    for expect in ["100-continue", "100-Continue"] {
        connection
            .write(holder.head(&holder.path(), &format!("Host: h\nContent-Length: 3\nExpect: {expect}")))
            .unwrap();
        assert_eq!(connection.read().status, 100);
        connection.write("abc").unwrap();
        assert_admitted(&connection.read());
    }
    for request in holder.seen() {
        assert_eq!((request.text().as_str(), request.headers.has("expect")), ("abc", false));
    }
}

#[test]
fn whoever_is_refused_gets_no_100() {
    let holder = stage().holder();
    let stale = holder
        .head(&holder.path(), "Host: h\nContent-Length: 3\nExpect: 100-continue")
        .replace(&format!("X-Fencing-Session: {}", holder.stage.bot.session_id()), "X-Fencing-Session: 1");
    assert_bytes_refused(&holder, &stale, 409, "session_mismatch");
    let large = holder.head(&holder.path(), "Host: h\nContent-Length: 99999999999\nExpect: 100-continue");
    assert_bytes_refused(&holder, large, 413, "body_too_large");
    let lost = holder.head("/nowhere", "Host: h\nContent-Length: 3\nExpect: 100-continue");
    assert_bytes_refused(&holder, lost, 404, "no_route");
    for odd in
        ["200-ok", "100-continue, 100-continue", "100-continue\nExpect: 100-continue", "", "100-continue;q=1"]
    {
        let head = holder.head(&holder.path(), &format!("Host: h\nContent-Length: 0\nExpect: {odd}"));
        assert_bytes_refused(&holder, head, 417, "expectation_failed");
    }
    // Whoever sends its body all the same, or something else instead, has sent no request.
    let mut connection = holder.connect();
    let hidden = holder.head(&holder.path(), "Host: h\nContent-Length: 0");
    let head = stale.replace("Content-Length: 3", &format!("Content-Length: {}", hidden.len()));
    connection.write(head).unwrap();
    let refusal = connection.read();
    assert_eq!((refusal.status, refusal.header("connection")), (409, Some("close")));
    let _ = connection.write(hidden);
    assert!(connection.read_within(PATIENCE).is_err(), "neither a 100 nor a second answer");
    assert!(connection.closes_within(PATIENCE));
    assert!(holder.seen().is_empty());
}

// Sizes

#[test]
fn a_head_beyond_the_limit_is_refused() {
    let holder = stage().holder();
    let head = |size: usize| holder.head(&holder.path(), &format!("Host: h\nX-Long: {}", "x".repeat(size)));
    assert_bytes_refused(&holder, head(65 * 1024), 431, "headers_too_large");
    let target = format!("{}?{}", holder.path(), "x".repeat(65_500));
    assert_bytes_refused(&holder, holder.head(&target, "Host: h"), 431, "headers_too_large");
    assert_no_request(&holder, head(2 * 1024 * 1024));
    let many: String = (0..2000).map(|number| format!("X-{number}: 1\n")).collect();
    assert_no_request(&holder, holder.head(&holder.path(), &format!("Host: h\n{many}")));
    let below = answer_to(
        &holder,
        holder
            .head(&holder.path(), &format!("Host: h\nContent-Length: 0\nX-Long: {}", "x".repeat(60 * 1024))),
    );
    assert_admitted(&below.unwrap());
    assert_eq!(only(&holder).header("x-long").map(str::len), Some(60 * 1024));
}

#[test]
fn what_is_no_http_is_answered_or_closed_and_counted() {
    let holder = stage().holder();
    let errors =
        || holder.stage.gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", "parse")]);
    let before = errors();
    assert_no_request(&holder, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n");
    assert_no_request(&holder, "nonsense\r\n\r\n");
    assert_no_request(&holder, "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n");
    support::wait_until("they are counted", || errors() >= before + 3.0);
    let mut connection = Connection::open(holder.stage.gateway.proxy());
    connection.write("\r\n\r\n").unwrap();
    connection.request("POST", &holder.path(), &holder.token, b"x").unwrap();
    assert_admitted(&connection.read());
}
