//! What variables do to a file.

use super::*;

#[test]
fn the_environment_overrides_the_file_by_the_keys_type() {
    let config = good(
        &around("[limits]\nmax_connections = 5"),
        &[
            ("FENCEGATE__ZOOKEEPER__CONNECT", "zk-1:2181,zk-2:2181"),
            ("FENCEGATE__zookeeper__Session_Timeout", "20s"),
            ("FENCEGATE__LISTEN__PROXY", "[::1]:8080"),
            ("FENCEGATE__LIMITS__MAX_CONNECTIONS", "7"),
            ("FENCEGATE__LIMITS__MAX_BUFFERED", "4096"),
            ("FENCEGATE__LIMITS__MAX_HEADER_BYTES", "16KiB"),
            ("FENCEGATE__METRICS__PER_ACCOUNT", "FALSE"),
            ("FENCEGATE__ROUTE__0__UPSTREAM", "http://sender:1"),
            ("FENCEGATE__ROUTE__0__METHODS", r#"["GET", "POST"]"#),
            ("FENCEGATE__ROUTE__1__PATH", "/x/{a}"),
            ("FENCEGATE__ROUTE__1__ACCOUNT__0", "path:a"),
            ("FENCEGATE__ROUTE__1__ACCOUNT__1", "query:a"),
            ("FENCEGATE__ROUTE__1__UPSTREAM", "http://other"),
            ("FENCEGATE__ZOOKEEPER__AUTH__0__SCHEME", "digest"),
            ("FENCEGATE__ZOOKEEPER__AUTH__0__CREDENTIAL", "user:[1]"),
            ("FENCEGATE__LOG", r#"{ level = "debug" }"#),
            // Not ours.
            ("FENCEGATE", "x"),
            ("FENCEGATE_ACCOUNT", "x"),
            ("fencegate__x", "x"),
            ("PATH", "/bin"),
        ],
    );
    assert_eq!(ensemble(&config).connect, "zk-1:2181,zk-2:2181");
    assert_eq!(ensemble(&config).session_timeout, Duration::from_secs(20));
    assert_eq!(config.listen.proxy.to_string(), "[::1]:8080");
    assert_eq!((config.limits.max_connections, config.limits.max_buffered), (7, 4096));
    assert_eq!(config.limits.max_header_bytes, 16 << 10);
    assert!(!config.metrics.per_account);
    assert_eq!(config.routes[0].upstreams[0].authority, "sender:1");
    assert_eq!(config.routes[0].methods.as_ref().map(Vec::len), Some(2));
    assert_eq!(config.routes[1].account.len(), 2);
    assert_eq!(ensemble(&config).auth[0].credential.expose(), "user:[1]");
    assert_eq!(config.log.level, Level::Debug);
}

#[test]
fn eleven_routes_can_come_from_the_environment() {
    let mut env = Vec::new();
    for index in 0..11 {
        env.push((format!("FENCEGATE__ROUTE__{index}__PATH"), format!("/{index}/{{a}}")));
        env.push((format!("FENCEGATE__ROUTE__{index}__ACCOUNT"), "path:a".to_owned()));
        env.push((format!("FENCEGATE__ROUTE__{index}__UPSTREAM"), "http://sender".to_owned()));
    }
    let config = parse("gateway.toml", ZOOKEEPER, env).unwrap();
    assert_eq!(config.routes.len(), 11);
    assert_eq!(config.routes[10].path.as_str(), "/10/{a}");
}

#[test]
fn unknown_variables_are_refused_with_what_exists() {
    let cases = [
        (
            "FENCEGATE__LISTEN__ADMNI",
            "unknown key \"admni\" in [listen] (did you mean \"admin\"?); allowed: proxy, admin",
        ),
        (
            "FENCEGATE__LISTN__ADMIN",
            "unknown key \"listn\" in the file (did you mean \"listen\"?); allowed: listen",
        ),
        (
            "FENCEGATE__ROUTE__0__UPSTREAMS",
            "unknown key \"upstreams\" in [[route]] (did you mean \"upstream\"?)",
        ),
        ("FENCEGATE__ROUTE__2__PATH", "there is no number 2; allowed: 0 to 1"),
        ("FENCEGATE__ROUTE__PATH", "\"path\" stands where a number must"),
        ("FENCEGATE__ROUTE__0__PATH__X", "\"x\" lies inside a single value"),
        ("FENCEGATE__LISTEN__TRUSTED_PROXIES", "\"trusted_proxies\" in [listen] is not built yet"),
        ("FENCEGATE__ROUTE__0__JSON_INTEGER", "allowed: true or false"),
        ("FENCEGATE__", "names no key"),
        ("FENCEGATE__LISTEN____PROXY", "names no key"),
        ("FENCEGATE__LISTEN", "a string is not allowed; allowed: the table [listen]"),
        ("FENCEGATE__ROUTE__0__METHODS", "allowed: a list such as [\"POST\"]"),
    ];
    for (name, says) in cases {
        let error = bad(&around(""), &[(name, "x")]);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.starts_with(&format!("{name}: ")) && error.contains(says), "{says}: {error}");
    }
    let error = bad(&around(""), &[("FENCEGATE__X__Y", "1"), ("FENCEGATE__X__Z", "1")]);
    assert_eq!(error.lines().count(), 2, "each is named: {error}");
}

#[test]
fn two_variables_for_one_key_are_refused() {
    let error = bad(&around(""), &[("FENCEGATE__LOG__LEVEL", "info"), ("FENCEGATE__log__level", "warn")]);
    assert!(error.contains("says the same as FENCEGATE__"), "{error}");
    let error = bad(&around(""), &[("FENCEGATE__LOG", "{}"), ("FENCEGATE__LOG__LEVEL", "warn")]);
    assert!(error.contains("lies inside FENCEGATE__LOG"), "{error}");
}
