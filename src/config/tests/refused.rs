//! What is said of a file that is wrong.

use super::*;

#[test]
fn an_unknown_key_is_refused_with_its_place_and_the_key_that_was_meant() {
    let error = bad("[listen]\nproxy = \"127.0.0.1:0\"\nadmni = \"127.0.0.1:0\"\n", &[]);
    let first = error.lines().next().unwrap();
    assert_eq!(
        first,
        "gateway.toml:3:1: unknown key \"admni\" in [listen] (did you mean \"admin\"?); allowed: proxy, admin, elections, insecure, tls"
    );
    let error = bad(&around("  [limitz]"), &[]);
    assert!(error.starts_with("gateway.toml:7:4: unknown key \"limitz\""), "{error}");
    assert!(error.contains("did you mean \"limits\"?"), "{error}");
}

#[test]
fn all_problems_are_reported_in_the_files_order() {
    let text = "[log]\nlevel = \"loud\"\nzap = 1\n[limits]\nmax_connections = 0\nidle_timeout = 5\n[listen]\nproxy = \"x\"\n";
    let error = bad(text, &[("FENCEGATE__METRICS__PER_ACCOUNT", "maybe")]);
    let starts = ["2:9", "3:1", "5:19", "6:16", "8:9", "1:1"];
    let mut lines = error.lines();
    for start in starts {
        let line = lines.next().unwrap();
        assert!(line.starts_with(&format!("gateway.toml:{start}: ")), "{start}: {line}");
        assert!(line.contains("; allowed: "), "{line}");
    }
    assert_eq!(
        lines.next(),
        Some(
            "FENCEGATE__METRICS__PER_ACCOUNT: `per_account`: \"maybe\" is not allowed; allowed: true or false"
        )
    );
    assert_eq!(lines.next(), None);
}

#[test]
fn errors_of_syntax_have_line_and_column() {
    assert!(bad("[listen]\nproxy = \n", &[]).starts_with("gateway.toml:2:"));
    assert!(bad("a = 1\na = 2\n", &[]).starts_with("gateway.toml:2:1: not TOML: "));
    assert!(bad("# nothing\n\n", &[]).starts_with("gateway.toml:1:1: the file is empty"));
    assert!(
        bad("", &[("FENCEGATE__ZOOKEEPER__CONNECT", "a:1")])
            .starts_with("gateway.toml:1:1: the file is empty")
    );
}

#[test]
fn what_is_missing_is_said_with_what_to_add() {
    let error = bad("[listen]\n", &[]);
    assert!(error.contains("there is no [[route]]"), "{error}");
    let error = bad("[zookeeper]\n[[route]]\n", &[]);
    for missing in ["1:1: `connect`", "2:1: `path`", "2:1: `account`", "2:1: `upstream`"] {
        assert!(error.contains(&format!("gateway.toml:{missing} is missing")), "{missing}: {error}");
    }
    assert_eq!(bad(&format!("[coordination]\nbackend = \"etcd\"\n{ROUTE}"), &[]).lines().count(), 1);
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let sections = [
        "[coordination]\nbackend = \"etcd\"",
        "[listen]\ntrusted_proxies = []",
        "[election]\nlayout = \"lowest-member\"",
        "[election]\nlayout = \"single-node\"",
        "[handover]\nscope = \"fleet\"",
    ];
    for section in sections {
        let error = bad(&around(section), &[]);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(" not built yet; allowed: "), "{error}");
    }
}

#[test]
fn a_senders_addresses_are_some_and_each_once_and_authorities_are_for_https() {
    let with = |upstream: &str| bad(&around("").replace("\"http://127.0.0.1:9000\"", upstream), &[]);
    assert!(with("[]").contains("the list is empty"));
    assert!(with("[\"http://a\", \"http://a\"]").contains("each once"));
    assert!(with("[\"http://a\", \"ftp://b\"]").contains("unknown scheme"));
    let many: Vec<_> = (0..65).map(|number| format!("http://a{number}")).collect();
    assert!(with(&format!("{many:?}")).contains("65 are too many; allowed: 64"));
    for key in ["upstream_ca", "upstream_name", "upstream_http"] {
        let value = if key == "upstream_http" { "auto" } else { "a.b" };
        let error = bad(&around(&format!("{key} = \"{value}\"")), &[]);
        assert!(error.contains(&format!("`{key}`: no upstream is https")), "{error}");
    }
    assert!(with("\"unix:run/sender.sock\"").contains("unix: and an absolute path"));
}

#[test]
fn a_certificate_for_senders_comes_with_its_key() {
    let with = |lines: &str| {
        bad(&around(lines).replace("\"http://127.0.0.1:9000\"", "\"https://127.0.0.1:9000\""), &[])
    };
    for (key, other) in [("upstream_cert", "upstream_cert_key"), ("upstream_cert_key", "upstream_cert")] {
        let error = with(&format!("{key} = \"a.pem\""));
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains(&format!("`{key}`: `{other}` is missing; allowed: both or neither")),
            "{error}"
        );
    }
    let error =
        with("upstream_cert = \"\"\nupstream_cert_key = 7\nupstream_name = \"a b\"\nupstream_http = \"3\"");
    for part in [
        "`upstream_cert`: \"\": no file",
        "`upstream_cert_key`: ",
        "`upstream_name`: ",
        "\"1\", \"2\", \"auto\"",
    ] {
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
    assert_eq!(error.lines().count(), 4, "{error}");
}

#[test]
fn bounds_are_kept_and_told() {
    let cases = [
        ("[zookeeper]", "session_timeout = \"999ms\"", "1s to 5m"),
        ("[zookeeper]", "session_timeout = \"301s\"", "1s to 5m"),
        ("[freshness]", "park_timeout = \"0s\"", "1ms to 24h"),
        ("[freshness]", "park_timeout = \"25h\"", "1ms to 24h"),
        ("[freshness]", "park_timeout = 3", "\"10s\""),
        ("[freshness]", "max_staleness = \"2h\"", "0ms to 1h"),
        ("[freshness]", "min_barrier_interval = \"3s\"", "less than park_timeout"),
        ("[freshness]", "max_parked = 0", "from 1 to"),
        ("[freshness]", "max_parked = -1", "from 1 to"),
        ("[freshness]", "max_parked = 1.5", "from 1 to"),
        ("[freshness]", "max_parked = \"10\"", "from 1 to"),
        ("[freshness]", "max_parked = 99999999999999999999999999999999999999999", "from 1 to"),
        ("[freshness]", "max_parked_per_account = 10001", "1 to 10000"),
        ("[limits]", "max_in_flight_per_account = 10001", "1 to 10000"),
        ("[limits]", "max_buffered = \"0B\"", "1B to 1TiB"),
        ("[limits]", "max_header_bytes = 8191", "8KiB to 16MiB"),
        ("[limits]", "max_header_bytes = \"64kb\"", "\"64KiB\""),
        ("[route]", "buffer = 0", "1B to 1GiB"),
        ("[route]", "max_in_flight = 10001", "1 to 10000"),
        ("[route]", "methods = []", "[\"POST\"]"),
        ("[route]", "methods = \"POST\"", "[\"POST\"]"),
        ("[route]", "methods = [\"POST\", \"post\", \"TRACE\"]", "upper-case"),
        ("[route]", "methods = [\"POST\", \"POST\"]", "each once"),
        ("[route]", "rewrite = \"/{other}\"", "{account}, {*rest}"),
        ("[route]", "query = {}", "{ type = \"2\" }"),
        ("[route]", "query = { type = 2 }", "a string"),
        ("[route]", "query = { \"a b\" = \"2\" }", "without spaces"),
        ("[route]", "query = \"type=2\"", "{ type = \"2\" }"),
        ("[route]", "json = { path = \"x\" }", "/data/guid"),
        ("[route]", "json = { \"/path\" = 1.5 }", "a whole number"),
        ("[route]", "json_integer = 1", "true or false"),
        ("[route]", "identity = \"md5\"", "\"sha256\""),
        ("[route]", "identity = \"map:\"", "\"map:FILE\""),
        ("[route]", "identity = \"map:no/such.toml\"", "a readable TOML file"),
        ("[route]", "refusal = { body = '{code}' }", "in strings"),
        ("[route]", "refusal = { status = 503, body = '{}' }", "200 to 499"),
        ("[route]", "refusal = { status = 204, body = '{}' }", "200 to 499"),
        ("[route]", "refusal = { status = 200 }", "a JSON text"),
        ("[route]", "refusal = '{}'", "the table [refusal]"),
        ("[election]", "root = \"/\"", "/wx-accounts"),
        ("[election]", "require_candidate = \"true\"", "true or false"),
        ("[metrics]", "max_accounts = 0", "from 1 to"),
        ("[listen]", "admin = \"127.0.0.1:8080\"", "another address"),
        ("[listen]", "admin = \"localhost:8080\"", "\"127.0.0.1:8080\""),
    ];
    for (section, key, allowed) in cases {
        let text = match section {
            "[route]" => around(key),
            "[zookeeper]" => around("").replacen('\n', &format!("\n{key}\n"), 1),
            _ => around(&format!("{section}\n{key}")),
        };
        let error = bad(&text, &[]);
        assert!(error.contains("; allowed: ") && error.contains(allowed), "{key}: {error}");
        let (line, _) = text.lines().enumerate().find(|(_, line)| *line == key).unwrap();
        assert!(error.starts_with(&format!("gateway.toml:{}:", line + 1)), "{key}: {error}");
    }
}

#[test]
fn a_listener_that_others_can_reach_needs_keys_or_the_word_insecure() {
    let keys = |list: &str, more: &str| {
        format!("[auth]\n{list} = [{{ name = \"a\", sha256 = \"{HASH}\"{more} }}]\n")
    };
    let (own, admin) = (keys("keys", ", accounts = [\"*\"]"), keys("admin_keys", ""));
    for (listener, port, list, keys) in [("proxy", 8080, "keys", &own), ("admin", 9090, "admin_keys", &admin)]
    {
        for address in ["0.0.0.0", "[::]", "10.1.2.3", "[::ffff:10.1.2.3]"] {
            let listen = format!("[listen]\n{listener} = \"{address}:{port}\"\n");
            let error = bad(&around(&listen), &[]);
            assert!(
                error.starts_with(&format!("gateway.toml:8:9: `{listener}`: {address}:{port} can be")),
                "{error}"
            );
            for way_out in
                [&format!("127.0.0.1:{port}"), list, "fencegate key new", "`insecure = true` in [listen]"]
            {
                assert!(error.contains(way_out), "{way_out}: {error}");
            }
            assert_eq!(error.lines().count(), 1, "{error}");
            good(&around(&format!("{listen}insecure = true")), &[]);
            good(&around(&format!("{listen}{keys}")), &[]);
            let tls =
                |more: &str| around(&format!("{listen}[listen.tls]\ncert = \"c\"\nkey = \"k\"\n{more}"));
            good(&tls("client_ca = \"a\""), &[]);
            bad(&tls(""), &[]);
            let other = if listener == "proxy" { "admin" } else { "proxy" };
            bad(&tls(&format!("client_ca = \"a\"\nlisteners = [\"{other}\"]")), &[]);
            bad(&around(&format!("{listen}{}", if *keys == own { &admin } else { &own })), &[]);
        }
        for address in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            good(&around(&format!("[listen]\n{listener} = \"{address}:{port}\"\n")), &[]);
        }
    }
    let error = bad(&around(""), &[("FENCEGATE__LISTEN__PROXY", "0.0.0.0:8080")]);
    assert!(error.starts_with("FENCEGATE__LISTEN__PROXY: "), "{error}");
}

#[test]
fn elections_that_others_can_reach_need_keys_or_certificates_too() {
    let listen = "[listen]\nelections = \"0.0.0.0:9091\"\n";
    let with = |more: &str| format!("{ROUTE}{listen}{more}");
    assert!(bad(&with(""), &[]).contains("`elections`: 0.0.0.0:9091 can be reached"));
    let tls = |more: &str| with(&format!("[listen.tls]\ncert = \"c\"\nkey = \"k\"\n{more}"));
    bad(&tls(""), &[]);
    bad(&tls("client_ca = \"a\"\nlisteners = [\"proxy\", \"admin\"]"), &[]);
    let config = good(&tls("client_ca = \"a\"\nelections_names = [\"agent-1\"]"), &[]);
    let tls = config.listen.tls.unwrap();
    assert!(tls.guards(TlsListener::Elections) && tls.guards(TlsListener::Proxy));
}

const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn names_of_clients_are_names_and_need_an_authority() {
    let tls = |more: &str| bad(&around(&format!("[listen.tls]\ncert = \"c\"\nkey = \"k\"\n{more}")), &[]);
    for key in ["client_names", "admin_names", "elections_names"] {
        let error = tls(&format!("{key} = [\"a\"]"));
        assert!(error.contains("nothing asks for certificates"), "{error}");
        let error = tls(&format!("client_ca = \"a\"\n{key} = [\"a b\"]"));
        assert!(error.contains("no name; allowed: a DNS name or an address"), "{error}");
    }
    let unknown = tls("listeners = [\"elsewhere\"]");
    assert!(unknown.contains("unknown; allowed: \"proxy\", \"admin\", \"elections\""), "{unknown}");
    assert!(tls("listeners = []").contains("the list is empty"));
    for (more, part) in [
        ("listeners = [\"elections\"]", "`listeners`: \"elections\": ZooKeeper holds the elections"),
        ("client_ca = \"a\"\nelections_names = [\"a\"]", "`elections_names`: ZooKeeper holds the elections"),
        (
            "client_ca = \"a\"\nadmin_names = [\"a\"]\nlisteners = [\"proxy\"]",
            "`admin_names`: `listeners` is without \"admin\"",
        ),
    ] {
        let error = tls(more);
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
    assert!(bad(&around("[listen.tls]\ncert = \"\""), &[]).contains("`key` is missing in [listen.tls]"));
}

#[test]
fn keys_are_named_hashed_and_for_certain_accounts() {
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let key = |name: &str, hash: &str, accounts: &str| {
        format!("{{ name = \"{name}\", sha256 = \"{hash}\", accounts = {accounts} }}")
    };
    let first = key("a", HASH, "[\"*\"]");
    let cases = [
        (key("", HASH, "[\"*\"]"), "1 to 64 of"),
        (key("a b", HASH, "[\"*\"]"), "1 to 64 of"),
        (key("b", "hunter2", "[\"*\"]"), "64 hex digits"),
        (key("b", nothing, "[\"*\"]"), "no key at all"),
        (key("b", &HASH.replace('b', "c"), "[]"), "the list is empty"),
        (key("b", &HASH.replace('b', "c"), "[\"a/b\"]"), "no pattern"),
        (key("b", &HASH.replace('b', "c"), "[\"a\", \"a\"]"), "each once"),
        (format!("{{ name = \"b\", sha256 = \"{HASH}\" }}"), "`accounts` is missing"),
        (key("a", &HASH.replace('b', "c"), "[\"*\"]"), "another key has it"),
        (key("b", HASH, "[\"*\"]"), "the same key again"),
    ];
    for (second, what) in cases {
        let error = bad(&around(&format!("[auth]\nkeys = [\n{first},\n{second}]")), &[]);
        assert!(error.starts_with("gateway.toml:10:") && error.contains(what), "{what}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let error = bad(&around(&format!("[auth]\nadmin_keys = [{first}]")), &[]);
    assert!(error.contains("unknown key \"accounts\""), "{error}");
}

#[test]
fn a_path_source_names_a_capture_that_is_no_tail() {
    for name in ["rest", "wxid", "*rest"] {
        let error = bad(&around("").replace("path:account", &format!("path:{name}")), &[]);
        assert!(error.starts_with("gateway.toml:5:11: `account`: "), "{error}");
        assert!(error.contains("allowed: path:account"), "{error}");
    }
}

#[test]
fn no_problem_shows_a_secret() {
    let auth = |auth: &str| format!("[zookeeper]\nconnect = \"a:1\"\nauth = {auth}\n{ROUTE}");
    let cases = [
        auth("\"hunter2\""),
        auth("[\"hunter2\"]"),
        auth("[{ scheme = \"digest\", credential = \"hunter2\" }]"),
        auth("[{ scheme = \"digest\", credential = \"u:hunter2\", x = \"hunter2\" }]"),
        auth("[{ scheme = \"digest\", credential = [\"hunter2\"] }]"),
        auth("[{ scheme = \"digest\", credential = \"hunter2"),
        around("").replace("http://", "http://u:hunter2@"),
        around("").replace("127.0.0.1:2181", "u:hunter2@zk:2181"),
    ];
    for text in cases {
        let error = bad(&text, &[]);
        assert!(!error.contains("hunter2"), "{error}");
    }
    let text = auth("[{ scheme = \"digest\", credential = \"env:ZK_DIGEST\" }]");
    assert!(bad(&text, &[]).contains("the environment variable \"ZK_DIGEST\" is not set"));
    assert!(!bad(&text, &[("ZK_DIGEST", "hunter2")]).contains("hunter2"));
}

#[test]
fn a_table_of_identities_is_read_beside_its_file_and_never_shown() {
    let folder = std::env::temp_dir().join(format!("fencegate-identities-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("gateway.toml");
    std::fs::write(&file, around("identity = \"map:accounts.toml\"")).unwrap();
    let mut said = Vec::new();
    for bad in [
        "hunter2",
        "hunter2 = \"a\"\nhunter2 = \"b\"",
        "hunter2 = \"a/hunter2\"",
        "hunter2 = 5",
        "hunter2.x = \"a\"",
        "\"\" = \"a\"",
        "# hunter2",
        "hunter2 = \"a",
    ] {
        std::fs::write(folder.join("accounts.toml"), bad).unwrap();
        said.push(load(&file, []).unwrap_err().to_string());
    }
    std::fs::write(folder.join("accounts.toml"), "\"hunter2\" = \"wxid_1\"\n").unwrap();
    let config = load(&file, []);
    std::fs::remove_dir_all(&folder).unwrap();
    for error in said {
        assert!(error.contains("gateway.toml:7:12: `identity`: "), "{error}");
        assert!(error.contains("accounts.toml\"") && error.contains("allowed: "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let config = config.unwrap();
    let Identity::Map(table) = &config.routes[0].identity else { panic!("a table") };
    assert_eq!((table.account("hunter2"), table.account("hunter")), (Some("wxid_1"), None));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_static_account_is_no_secret() {
    let text = around("identity = \"sha256\"").replace("path:account", "static:wxid_1");
    let error = bad(&text, &[]);
    assert!(error.starts_with("gateway.toml:7:12: `identity`: static:NAME names"), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_with_its_name() {
    let error = load(Path::new("no/such/gateway.toml"), []).unwrap_err().to_string();
    assert!(error.starts_with("no/such/gateway.toml:1:1: cannot be read: "), "{error}");
    let dir = std::env::temp_dir().join(format!("fencegate-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("gateway.toml");
    std::fs::write(&file, b"[log]\nlevel = \"\xff\"\n").unwrap();
    let bytes = load(&file, []);
    std::fs::write(&file, around("")).unwrap();
    let whole = load(&file, []);
    std::fs::remove_dir_all(&dir).unwrap();
    let error = bytes.unwrap_err().to_string();
    assert!(error.ends_with("gateway.toml:2:10: not UTF-8; allowed: UTF-8 text"), "{error}");
    assert!(whole.is_ok());
}
