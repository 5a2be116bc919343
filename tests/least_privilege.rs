//! What the gateway needs of ZooKeeper: to read the root and what is below it, and nothing else.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic in its helpers too")]

mod support;

use serde_json::json;
use support::{Ensemble, Gateway, Headers, Instance, Sender, assert_admitted, wait_until};
use zookeeper_client::{Acl, Acls, CreateMode, Error, Permission};

/// The bots may do everything, everybody else may read.
static READABLE: [Acl; 2] =
    [Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(Permission::READ, "world", "anyone")];

fn create(bot: &Instance, path: &str, data: impl Into<Vec<u8>>, mode: CreateMode) -> i64 {
    let (path, data) = (path.to_owned(), data.into());
    bot.ask(move |client| async move {
        let options = mode.with_acls(Acls::new(&READABLE));
        let (_, number) = client.create(&path, &data, &options).await.unwrap();
        number.into_i64()
    })
}

/// Makes this instance the holder; returns its token.
fn lead(bot: &Instance, account: &str) -> Headers {
    let members = format!("/wx-accounts/{account}/members/m-");
    let number = create(bot, &members, "{}", CreateMode::EphemeralSequential);
    let session = bot.session_id();
    let data = json!({"seq": number, "instanceId": bot.name(), "sessionId": session}).to_string();
    create(bot, &format!("/wx-accounts/{account}/active"), data, CreateMode::Ephemeral);
    Headers::none().with("X-Fencing-Seq", number).with("X-Fencing-Session", session)
}

fn bot(ensemble: &Ensemble, name: &str) -> Instance {
    let bot = Instance::open(&ensemble.connect(), name);
    bot.ask(|client| async move { client.auth("digest", b"bots:secret").await }).unwrap();
    bot
}

#[test]
fn read_alone_is_enough_to_judge_to_prove_and_to_follow_a_handover() {
    let ensemble = Ensemble::start(1);
    let sender = Sender::new();
    let first = bot(&ensemble, "host-a");
    for path in ["/wx-accounts", "/wx-accounts/wxid_1", "/wx-accounts/wxid_1/members"] {
        create(&first, path, "", CreateMode::Persistent);
    }
    let token = lead(&first, "wxid_1");
    let gateway = Gateway::start(&ensemble.connect(), &sender.url());
    assert_admitted(&gateway.send("wxid_1", &token, "x"));

    // Whoever has shown no more than the gateway may change nothing.
    let stranger = Instance::open(&ensemble.connect(), "nobody");
    let changed = stranger.ask(|client| async move {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        [
            client.create("/wx-accounts/wxid_2", b"", &options).await.err(),
            client.set_data("/wx-accounts/wxid_1/active", b"{}", None).await.err(),
            client.delete("/wx-accounts/wxid_1/active", None).await.err(),
        ]
    });
    assert!(changed.iter().all(|error| *error == Some(Error::NoAuth)), "{changed:?}");

    let second = bot(&ensemble, "host-b");
    first.leave();
    let newer = lead(&second, "wxid_1");
    wait_until("the new holder is admitted", || gateway.send("wxid_1", &newer, "x").status == 200);
    assert_eq!(gateway.send("wxid_1", &token, "x").code().as_deref(), Some("stale_token"));
    assert!(!gateway.log().contains("may not be read"), "{}", gateway.log());
}
