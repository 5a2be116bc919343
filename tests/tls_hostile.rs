//! TLS from those who mean no good, or whose time is over: certificates, handshakes, and what is left of an earlier one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::Signal;
use support::certificates::text;
use support::tls::{curl, s_client, said};
use support::{Authority, Certificate, Connection, Gateway, PATIENCE, Setup, Shared, Stage, wait_until};

/// ZooKeeper and a sender; each test starts a gateway of its own beside its.
static SHARED: Shared = Shared::new();

struct World {
    gateway: Gateway,
    authority: Authority,
    server: Certificate,
    _stage: Arc<Stage>,
}

impl World {
    #[track_caller]
    fn new(limits: &str, more: impl FnOnce(&Authority) -> String) -> Self {
        let stage = SHARED.stage(|setup, _| setup);
        let authority = Authority::new("ours");
        let server = authority.sign("server", "DNS:localhost,IP:127.0.0.1");
        let files = format!("cert = {:?}\nkey = {:?}\nlisteners = [\"proxy\"]\n", server.cert, server.key);
        let gateway = Setup::new(&stage.connect(), &stage.sender.url())
            .section("limits", limits)
            .section("listen.tls", &format!("{files}{}", more(&authority)))
            .start();
        Self { gateway, authority, server, _stage: stage }
    }

    fn errors(&self, kind: &str) -> f64 {
        self.gateway.metrics().sum("fencegate_connection_errors_total", &[("kind", kind)])
    }

    /// Whether somebody with this certificate is answered.
    fn lets_in(&self, certificate: &Certificate) -> bool {
        let mut command = curl(&self.authority, self.gateway.proxy(), "/nowhere");
        command.args(["--cert", text(&certificate.cert), "--key", text(&certificate.key)]);
        said(&command.output().unwrap()).is_ok()
    }
}

#[test]
fn a_certificate_that_has_run_out_or_is_enormous_lets_nobody_in() {
    let world = World::new("", |ours| format!("client_ca = {:?}", ours.cert()));
    let bot = world.authority.sign("bot", "DNS:bot-1.internal");
    assert!(world.lets_in(&bot));
    world.authority.let_run_out(&bot);
    let before = world.errors("tls");
    assert!(!world.lets_in(&bot), "it has run out");
    let names: Vec<String> = (0..5000).map(|number| format!("DNS:bot-{number}.internal")).collect();
    assert!(!world.lets_in(&world.authority.sign("large", &names.join(","))), "it is enormous");
    wait_until("they are counted", || world.errors("tls") >= before + 2.0);
    assert!(world.lets_in(&world.authority.sign("other", "DNS:bot-1.internal")), "others are let in");
}

#[test]
fn after_sighup_the_new_authority_counts_and_a_broken_file_changes_nothing() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let list = old.cert().with_file_name("clients.pem");
    std::fs::copy(old.cert(), &list).unwrap();
    let world = World::new("", |_| format!("client_ca = {list:?}"));
    let (old_bot, new_bot) = (old.sign("bot", "DNS:bot"), new.sign("bot", "DNS:bot"));
    let lets_in = || (world.lets_in(&old_bot), world.lets_in(&new_bot));
    let reloads =
        |result| world.gateway.metrics().sum("fencegate_certificate_reloads_total", &[("result", result)]);
    let read_again = |result: &'static str, what: &str| {
        let before = reloads(result);
        world.gateway.signal(Signal::HUP);
        wait_until(what, || reloads(result) > before);
    };
    assert_eq!(lets_in(), (true, false));
    for (what, bad) in [
        ("nothing", ""),
        ("no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ] {
        std::fs::write(&list, bad).unwrap();
        read_again("failed", what);
        assert_eq!(lets_in(), (true, false), "{what}");
    }
    std::fs::remove_file(&list).unwrap();
    read_again("failed", "no file");
    world.gateway.wait_for_line("the certificates stay as they were: [listen.tls] client_ca");
    std::fs::copy(new.cert(), &list).unwrap();
    read_again("read", "the new authority");
    assert_eq!(lets_in(), (false, true));
}

#[test]
fn no_handshake_is_shortened_by_an_earlier_one_and_none_is_begun_again_on_a_connection() {
    let world = World::new("", |_| String::new());
    let client = || s_client(&world.authority, world.gateway.proxy());
    let again = client().args(["-tls1_2", "-reconnect"]).stdin(Stdio::null()).output().unwrap();
    let again = said(&again).unwrap();
    assert!(again.matches("New, TLSv1.2").count() >= 6 && !again.contains("Reused"), "{again}");
    let latest = said(&client().arg("-tls1_3").stdin(Stdio::null()).output().unwrap()).unwrap();
    assert!(latest.contains("New, TLSv1.3") && !latest.contains("New Session Ticket"), "{latest}");
    assert!(latest.contains("Early data was not sent"), "{latest}");

    let mut eager = client();
    eager.arg("-tls1_2").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut eager = eager.spawn().unwrap();
    eager.stdin.as_mut().unwrap().write_all(b"R\n").unwrap();
    let output = eager.wait_with_output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complained.contains("no renegotiation"), "{complained}");
}

#[test]
fn handshakes_that_never_end_count_as_connections_and_give_their_places_back() {
    let world = World::new("header_read_timeout = \"1s\"\nmax_connections = 4", |_| String::new());
    let own = world.server.clone();
    assert!(world.lets_in(&own));
    let refused = world.errors("too_many");
    let hello = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    let slow: Vec<_> = (0..12)
        .map(|_| {
            let mut slow = Connection::open(world.gateway.proxy());
            let _ = slow.write(hello);
            slow
        })
        .collect();
    wait_until("more are not taken", || world.errors("too_many") >= refused + 8.0);
    for mut slow in slow {
        assert!(slow.closes_within(PATIENCE));
    }
    wait_until("others are served again", || world.lets_in(&own));
    wait_until("each is counted", || world.errors("header_timeout") >= 4.0);
}
