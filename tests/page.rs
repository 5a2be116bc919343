//! The live page in a real browser.

mod support;

use fencegate::key::KeyHash;
use serde_json::{Value, json};
use support::{Browser, Ensemble, Gateway, Headers, Instance, Sender, Setup, call};

/// A gateway with its ZooKeeper and sender, and a browser that shows its page.
struct World {
    browser: Browser,
    gateway: Gateway,
    ensemble: Ensemble,
    /// Where admitted sends would go.
    _sender: Sender,
}

impl World {
    fn start(width: u32) -> Self {
        Self::with(width, |setup| setup)
    }

    fn with(width: u32, change: impl FnOnce(Setup) -> Setup) -> Self {
        let (ensemble, sender) = (Ensemble::start(1), Sender::new());
        let gateway = change(Setup::new(&ensemble.connect(), &sender.url())).start();
        let browser = Browser::start(width, 800);
        Self { browser, gateway, ensemble, _sender: sender }
    }

    fn open(&self) {
        self.open_as("");
    }

    /// `user`: as an address has it, with its password and an `@`.
    fn open_as(&self, user: &str) {
        self.browser.open(&format!("http://{user}{}/", self.gateway.admin()));
        self.wait_until_live();
    }

    fn wait_until_live(&self) {
        self.browser.wait_until("the page is live", "document.querySelector('#live').textContent === 'live'");
    }

    fn instance(&self, name: &str) -> Instance {
        Instance::open(&self.ensemble.connect(), name)
    }

    /// The row of an account, by the labels of its cells, once `holds` (of `row`, in JavaScript) is true.
    fn row(&self, account: &str, holds: &str) -> Value {
        let row = format!(
            "(() => {{ const rows = [...document.querySelectorAll('#rows tr')].map((row) => Object.fromEntries(
                 [...row.cells].map((cell) => [cell.dataset.label, cell.textContent])));
               return rows.find((row) => row.account === {}); }})()",
            json!(account)
        );
        let found = format!("(() => {{ const row = {row}; return !!row && ({holds}); }})()");
        self.browser.wait_until(&format!("{account}: {holds}"), &found);
        self.browser.ask(&row)
    }

    fn assert_no_complaint(&self) {
        assert_eq!(self.browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn the_page_shows_accounts_and_a_handover_and_a_rejection_as_they_happen() {
    let world = World::start(1200);
    let (old, new) = (world.instance("host-a"), world.instance("host-b"));
    old.lead("wxid_1");
    world.gateway.wait_for_holder("wxid_1", 0);
    world.open();
    let row = world.row("wxid_1", "row.state === 'held'");
    assert_eq!(
        (&row["holder"], &row["seq"], &row["candidates"], &row["handovers"], &row["rejected"]),
        (&json!("host-a"), &json!("0"), &json!("1"), &json!("0"), &json!("0"))
    );
    assert_eq!(world.browser.text("#total"), "1");
    assert_eq!(world.browser.text("#connected"), "connected");
    assert!(world.browser.text("#proof").ends_with(" old"), "{}", world.browser.text("#proof"));

    new.join("wxid_1");
    old.expire();
    new.take("wxid_1");
    let row = world.row("wxid_1", "row.handovers === '1'");
    assert_eq!((&row["holder"], &row["seq"]), (&json!("host-b"), &json!("1")));
    world
        .browser
        .wait_until("the handover is told", "document.querySelectorAll('#handovers li').length === 1");
    let told = world.browser.text("#handovers li");
    assert!(told.ends_with("wxid_1 host-a (0) → host-b (1) session_expired"), "{told}");

    assert_eq!(world.gateway.send("wxid_1", &old.token("wxid_1"), "{}").status, 409);
    world.browser.wait_until("the refusal is told", "document.querySelectorAll('#refusals li').length === 1");
    assert!(world.browser.text("#refusals li").contains("stale_token wxid_1 "));
    world.row("wxid_1", "row.rejected === '1'");

    world.browser.ask("document.querySelector('#rows button').click()");
    world.browser.wait_until("the account is shown", "document.querySelector('#one').open");
    let one = world.browser.text("#one-facts");
    for part in ["session_expired", "rejected: stale_token", "host-a, seq 0", "epoch"] {
        assert!(one.contains(part), "{part}: {one}");
    }
    world.assert_no_complaint();
}

#[test]
fn a_storm_of_refusals_is_counted_and_the_newest_hundred_are_listed() {
    let world = World::start(1200);
    let bot = world.instance("host-a");
    bot.lead("wxid_1");
    world.gateway.wait_for_holder("wxid_1", 0);
    world.open();
    let over = bot.token("wxid_1").with("X-Fencing-Epoch", "1");
    for _ in 0..250 {
        assert_eq!(world.gateway.send("wxid_1", &over, "{}").status, 409);
    }
    world
        .browser
        .wait_until("all are counted", "document.querySelector('#refusal-count').textContent === '250'");
    assert_eq!(world.browser.ask("document.querySelectorAll('#refusals li').length"), 100);
    world.row("wxid_1", "row.rejected === '250'");
    world.assert_no_complaint();
}

#[test]
fn what_instances_call_themselves_is_text_and_nothing_else() {
    const HOSTILE: [&str; 4] = [
        "<img src=x onerror=\"window.hit=1\">",
        "</script><script>window.hit=1</script>",
        "\u{202e}b-tsoh\u{1b}[31m",
        "${window.hit=1}&lt;b&gt;'\"",
    ];
    let world = World::start(1200);
    let (one, two) = (world.instance("one"), world.instance("two"));
    one.join("wxid_0");
    two.join("wxid_0");
    world.open();
    for (term, instance) in HOSTILE.iter().enumerate() {
        let holder = if term % 2 == 0 { &one } else { &two };
        let mut data = holder.active_data("wxid_0");
        data["instanceId"] = json!(instance);
        holder.take_with("wxid_0", data.to_string());
        let shown = instance.replace('\u{202e}', "\\u{202e}").replace('\u{1b}', "\\u{1b}");
        world.row("wxid_0", &format!("row.holder === {}", json!(shown)));
        holder.drop_active("wxid_0");
        world.row("wxid_0", "row.state === 'vacant'");
    }
    let last = HOSTILE.len() - 1;
    world.browser.wait_until(
        "all handovers are told",
        &format!("document.querySelectorAll('#handovers li').length === {last}"),
    );
    let told = world.browser.text("#handovers");
    assert!(told.contains(HOSTILE[0]) && told.contains(HOSTILE[1]), "{told}");
    assert_eq!(world.browser.ask("window.hit === undefined"), true);
    assert_eq!(world.browser.ask("document.images.length + document.scripts.length"), 1);
    world.assert_no_complaint();
}

#[test]
fn the_page_says_that_its_connection_is_lost_and_finds_it_again() {
    let world = World::start(1200);
    let bot = world.instance("host-a");
    bot.lead("wxid_1");
    world.open();
    world.row("wxid_1", "row.state === 'held'");
    world.gateway.kill();
    world.browser.wait_until("the loss is shown", "!document.querySelector('#lost').hidden");
    assert_eq!(world.browser.text("#live"), "lost");
    let said = world.browser.text("#lost");
    assert!(said.contains("No connection") && said.contains("What is shown is from"), "{said}");

    bot.lead("wxid_2");
    world.gateway.restart();
    world.wait_until_live();
    world.row("wxid_2", "row.state === 'held'");
    assert_eq!(world.browser.ask("document.querySelector('#lost').hidden"), true);
}

#[test]
fn accounts_are_found_by_the_beginning_of_their_names_and_turned_over_in_pages() {
    let world = World::start(1200);
    let bot = world.instance("host-a");
    for number in 0..120 {
        bot.make_path(&bot.path(&format!("wxid_{number:03}"), "members"));
    }
    bot.lead("other");
    world.gateway.wait_for_holder("other", 0);
    world.open();
    let first = "document.querySelector('#rows tr')?.cells[0].textContent";
    let place = "document.querySelector('#place').textContent";
    let click = |id: &str| world.browser.ask(&format!("document.querySelector('#{id}').click()"));
    let type_in = |text: &str| {
        world.browser.ask(&format!(
            "(() => {{ const field = document.querySelector('#prefix'); field.value = {}; \
               field.dispatchEvent(new Event('input')); }})()",
            json!(text)
        ))
    };
    world.browser.wait_until("the first page", &format!("{place} === '1 to 50' && {first} === 'other'"));
    click("on");
    world
        .browser
        .wait_until("the second page", &format!("{place} === '51 to 100' && {first} === 'wxid_049'"));
    click("on");
    world.browser.wait_until("the last page", &format!("{place} === '101 to 121'"));
    assert_eq!(world.browser.ask("document.querySelector('#on').disabled"), true);
    click("back");
    world.browser.wait_until("back again", &format!("{place} === '51 to 100'"));
    type_in("wxid_11");
    world.browser.wait_until("found", &format!("{place} === '1 to 10' && {first} === 'wxid_110'"));
    type_in("no/name");
    world.browser.wait_until("told why not", &format!("{place}.includes('must be a name')"));
    type_in("");
    world.browser.ask(
        "(() => { const state = document.querySelector('#state'); state.value = 'held'; \
           state.dispatchEvent(new Event('change')); })()",
    );
    world.browser.wait_until("the held ones", &format!("{place} === '1 to 1' && {first} === 'other'"));
}

#[test]
fn the_page_is_readable_on_a_phone_in_the_dark_and_loads_nothing_from_elsewhere() {
    let world = World::start(360);
    let bot = world.instance(&"a-long-name-".repeat(20));
    bot.lead(&"w".repeat(128));
    world.open();
    world.row(&"w".repeat(128), "row.state === 'held'");
    let metrics = json!({ "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true });
    world.browser.command("Emulation.setDeviceMetricsOverride", &metrics);
    world.browser.wait_until(
        "nothing is wider than the screen",
        "document.documentElement.scrollWidth <= 360 && getComputedStyle(document.querySelector('#rows td')).display === 'flex'",
    );
    let ground = "getComputedStyle(document.body).backgroundColor";
    let scheme = |value: &str| {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        world.browser.command("Emulation.setEmulatedMedia", &features);
        world.browser.ask(ground)
    };
    assert_ne!(scheme("dark"), scheme("light"));
    let loaded =
        world.browser.ask("performance.getEntriesByType('resource').map((it) => new URL(it.name).host)");
    let own = json!(world.gateway.admin().to_string());
    assert!(loaded.as_array().unwrap().iter().all(|host| *host == own), "{loaded}");
    world.assert_no_complaint();
}

#[test]
fn the_pages_policy_lets_in_its_own_script_and_no_other() {
    let world = World::start(1200);
    world.open();
    let answer = call(world.gateway.admin(), "GET", "/", &Headers::none(), b"");
    let policy = answer.header("content-security-policy").unwrap_or_default();
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "script-src 'sha256-"]
    {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    world.assert_no_complaint();
    world.browser.ask(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.hit = 1'; \
           document.body.append(script); })()",
    );
    assert_eq!(world.browser.ask("window.hit === undefined"), true);
    assert!(world.browser.complaints().iter().any(|said| said.contains("Content Security Policy")));
}

#[test]
fn where_the_gateway_has_keys_the_page_works_with_one_as_its_password() {
    let hash = KeyHash::of(b"fgk_an-operators-key");
    let keys = format!("admin_keys = [{{ name = \"operator\", sha256 = \"{hash}\" }}]");
    let world = World::with(1200, |setup| setup.section("auth", &keys));
    assert_eq!(call(world.gateway.admin(), "GET", "/", &Headers::none(), b"").status, 401);
    world.instance("host-a").lead("wxid_1");
    world.open_as("me:fgk_an-operators-key@");
    world.row("wxid_1", "true");
    world.assert_no_complaint();
}
