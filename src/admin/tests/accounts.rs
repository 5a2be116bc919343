//! The accounts, one and all.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use serde_json::json;

use super::*;
use crate::code::Code;
use crate::fence::token::Claim;
use crate::fence::view::Invalid;
use crate::gateway::admission::{Admission, Judge, Rules};
use crate::gateway::parking::Bounds;
use crate::gateway::proofs::Relay;

async fn admit(world: &World, name: &str) -> Admission {
    let holder = world.memory.holder(&account(name)).unwrap();
    let claim = Claim { seq: holder.seq, session: holder.session, instance: None, epoch: None };
    let rules = Rules {
        max_staleness: Duration::ZERO,
        park_timeout: Duration::from_secs(10),
        parking: Bounds { most: 10, most_per_account: 10 },
        most_in_flight_per_account: 10,
    };
    let send = std::sync::Arc::new(crate::gateway::entry::Send::new(HeaderValue::from_static("r1")));
    let judge = Judge {
        registry: &world.registry,
        relay: &Relay::start(&world.registry.proofs),
        rules: &rules,
        account: name,
        entry: None,
        claim: &claim,
        send: &send,
        patience: Duration::from_secs(60),
    };
    judge.admit().await.unwrap()
}

fn names(page: &Value) -> Vec<&str> {
    page["accounts"].as_array().unwrap().iter().map(|it| it["account"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_is_sorted_and_goes_on_after_the_name_it_ended_with() {
    let world = World::new().await;
    for (index, name) in ["b", "wxid_2", "a+1", "wxid_10", "wxid_1"].into_iter().enumerate() {
        world.stand(name, index as i64 + 1, "host").await;
    }
    let all = world.get("/v1/accounts").await.json();
    assert_eq!(names(&all), ["a+1", "b", "wxid_1", "wxid_10", "wxid_2"]);
    assert_eq!(all["next"], Value::Null);

    let first = world.get("/v1/accounts?limit=2").await.json();
    assert_eq!((names(&first), &first["next"]), (vec!["a+1", "b"], &json!("b")));
    let second = world.get("/v1/accounts?limit=2&after=b").await.json();
    assert_eq!((names(&second), &second["next"]), (vec!["wxid_1", "wxid_10"], &json!("wxid_10")));
    let third = world.get("/v1/accounts?limit=2&after=wxid_10").await.json();
    assert_eq!((names(&third), &third["next"]), (vec!["wxid_2"], &Value::Null));

    let some = world.get("/v1/accounts?prefix=wxid_1&limit=2").await.json();
    assert_eq!((names(&some), &some["next"]), (vec!["wxid_1", "wxid_10"], &Value::Null));
    assert_eq!(names(&world.get("/v1/accounts?prefix=a%2B").await.json()), ["a+1"]);
    assert_eq!(names(&world.get("/v1/accounts?prefix=nobody").await.json()), Vec::<&str>::new());
}

#[tokio::test]
async fn the_list_can_be_asked_for_one_state() {
    let world = World::new().await;
    for (index, name) in ["held", "invalid", "vacant"].into_iter().enumerate() {
        world.stand(name, index as i64 + 1, "host").await;
    }
    world.memory.end(SessionId(3));
    world.until_account("vacant", "vacant", |it| it["state"] == "vacant").await;
    world.tint("invalid", View::Invalid(Invalid::NoCandidate)).await;
    for state in ["held", "vacant", "invalid"] {
        assert_eq!(names(&world.get(&format!("/v1/accounts?state={state}")).await.json()), [state]);
    }
    assert_eq!(names(&world.get("/v1/accounts?state=unknown").await.json()), Vec::<&str>::new());
    // A page ends where the state's accounts end, not where all do.
    assert_eq!(world.get("/v1/accounts?state=held&limit=1").await.json()["next"], Value::Null);
    let invalid = world.get("/v1/accounts/invalid").await.json();
    assert_eq!(invalid["invalid_reason"], Invalid::NoCandidate.to_string());
    assert_eq!(invalid["holder"], Value::Null);
}

#[tokio::test]
async fn an_account_is_unknown_until_it_is_read() {
    let memory = Memory::default();
    memory.stand(&account("wxid_1"), SessionId(1), "host");
    let world = World::closed(memory, true, 10);
    let it = world.until_account("wxid_1", "listed", |_| true).await;
    assert_eq!((&it["state"], &it["holder"]), (&json!("unknown"), &Value::Null));
    assert_eq!(names(&world.get("/v1/accounts?state=unknown").await.json()), ["wxid_1"]);
    assert_eq!(world.get("/v1/view").await.json()["loading"], true);
    world.lens.send_replace(true);
    world.until_account("wxid_1", "held", |it| it["state"] == "held").await;
}

#[tokio::test]
async fn bad_parameters_are_refused_with_what_is_allowed() {
    let world = World::new().await;
    for (query, allowed) in [
        ("state=free", "held, vacant, invalid or unknown"),
        ("state=", "held, vacant, invalid or unknown"),
        ("limit=0", "from 1 to 10000"),
        ("limit=10001", "from 1 to 10000"),
        ("limit=%2B5", "from 1 to 10000"),
        ("limit=-1", "from 1 to 10000"),
        ("limit=", "from 1 to 10000"),
        ("limit=99999999999999999999999", "from 1 to 10000"),
        ("prefix=a/b", "A-Z a-z 0-9"),
        ("prefix=+49", "%2B"),
        ("after=%FF", "A-Z a-z 0-9"),
        ("limit=1&limit=2", "given twice"),
        ("order=down", "state, prefix, limit and after"),
    ] {
        let detail = world.get(&format!("/v1/accounts?{query}")).await.problem(400);
        assert!(detail.contains(allowed), "{query}: {detail}");
    }
    for query in ["limit=10000", "prefix=", "after=", "prefix=.", "prefix=..", "after=%7E"] {
        assert_eq!(world.get(&format!("/v1/accounts?{query}")).await.status, StatusCode::OK, "{query}");
    }
}

#[tokio::test]
async fn one_account_has_the_shape_of_the_contract() {
    let world = World::new().await;
    let old = world.stand("wxid_1", -1, "host-a").await;
    let new = world.stand("wxid_1", 0x1000, "host-b").await;
    world.registry.reject(world.registry.get("wxid_1").as_deref(), Code::StaleToken);
    world.memory.end(SessionId(-1));
    let it = world.until_account("wxid_1", "handed over", |it| it["handovers"] == 1).await;
    let at = it["last_handover"]["at"].as_u64().unwrap();
    let vacant = it["last_handover"]["vacant_ms"].as_u64().unwrap();
    let epoch = world.memory.holder(&account("wxid_1")).unwrap().epoch.to_string();
    assert_eq!(
        it,
        json!({
            "account": "wxid_1",
            "state": "held",
            "holder": {
                "seq": new, "session": "0x1000", "instance_id": "host-b", "epoch": epoch, "active_since": null,
            },
            "invalid_reason": null,
            "candidates": 1,
            "in_flight": 0,
            "parked": 0,
            "handovers": 1,
            "last_handover": {
                "at": at,
                "reason": "session_expired",
                "from": { "seq": old, "instance_id": "host-a" },
                "to": { "seq": new, "instance_id": "host-b" },
                "vacant_ms": vacant,
                "drain_ms": 0,
            },
            "rejections": { "stale_token": 1 },
        })
    );
    assert_eq!(world.get("/v1/accounts").await.json()["accounts"][0], it);
}

#[tokio::test]
async fn a_session_is_hex_of_its_64_bits() {
    let world = World::new().await;
    world.stand("wxid_1", -1, "host-a").await;
    assert_eq!(world.get("/v1/accounts/wxid_1").await.json()["holder"]["session"], "0xffffffffffffffff");
}

#[tokio::test]
async fn an_account_without_a_znode_is_left_out_and_shown_as_vacant_when_asked_for() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host-a").await;
    world.stand("wxid_2", 2, "host-a").await;
    world.tint("wxid_1", View::Absent).await;
    assert_eq!(names(&world.get("/v1/accounts").await.json()), ["wxid_2"]);
    assert_eq!(world.get("/v1/view").await.json()["accounts"], 1);
    let it = world.get("/v1/accounts/wxid_1").await.json();
    assert_eq!((&it["state"], &it["holder"]), (&json!("vacant"), &Value::Null));
}

#[tokio::test]
async fn an_account_without_a_znode_stays_in_the_list_until_its_last_send_has_ended() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host-a").await;
    let admission = admit(&world, "wxid_1").await;
    assert!(admission.identity.account == "wxid_1");
    // As the proxy has it: one that began is not withdrawn when its holder ends.
    crate::forward::Authority::begin(&admission).unwrap();
    world.tint("wxid_1", View::Absent).await;
    let page = world.get("/v1/accounts?state=vacant").await.json();
    assert_eq!((names(&page), &page["accounts"][0]["in_flight"]), (vec!["wxid_1"], &json!(1)));
    drop(admission);
    assert_eq!(names(&world.get("/v1/accounts").await.json()), Vec::<&str>::new());
}

#[tokio::test]
async fn a_drain_that_goes_on_has_no_length_yet() {
    let world = World::new().await;
    world.stand("wxid_1", 1, "host-a").await;
    world.stand("wxid_1", 2, "host-b").await;
    let admission = Arc::new(admit(&world, "wxid_1").await);
    crate::forward::Authority::begin(&*admission).unwrap();
    world.memory.end(SessionId(1));
    let it = world.until_account("wxid_1", "handed over", |it| it["handovers"] == 1).await;
    assert_eq!((&it["last_handover"]["drain_ms"], &it["in_flight"]), (&Value::Null, &json!(1)));
    drop(admission);
    let it = world.get("/v1/accounts/wxid_1").await.json();
    assert!(it["last_handover"]["drain_ms"].is_u64(), "{it}");
}
