//! How many pieces of memory one request takes, counted over the whole process: the gateway on real sockets in front of the
//! memory backend, with a caller and a sender that take none.
//!
//! A bound is what was measured with a little room. Whoever raises one says why.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use fencegate::config;
use fencegate::election::memory::Memory;
use fencegate::fence::name::AccountName;
use fencegate::fence::token::SessionId;
use fencegate::serve::{self, Bound};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const REQUESTS: u64 = 500;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"sent\":true}";

/// Reads one message with a body of announced length into `buffer`; true if there was one.
fn read_message(stream: &mut TcpStream, buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).expect("a message");
        if read == 0 {
            return false;
        }
        filled += read;
        let Ok(text) = std::str::from_utf8(&buffer[..filled]) else { continue };
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text[..end].lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if filled >= end + 4 + length.unwrap_or(0) {
                return true;
            }
        }
    }
}

fn answer_everything(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("the gateway");
    let mut buffer = [0; 4096];
    while read_message(&mut stream, &mut buffer) {
        stream.write_all(ANSWER).expect("an answer");
    }
}

/// Pieces of memory for each request, in all of the process.
fn per_request(gateway: SocketAddr, request: &str, status: &str) -> u64 {
    let mut stream = TcpStream::connect(gateway).expect("the gateway");
    let mut buffer = [0; 4096];
    let mut send = |times: u64| {
        for _ in 0..times {
            stream.write_all(request.as_bytes()).expect("a request");
            assert!(read_message(&mut stream, &mut buffer));
            assert!(buffer.starts_with(status.as_bytes()), "{}", String::from_utf8_lossy(&buffer));
        }
    };
    send(50);
    let before = dhat::HeapStats::get().total_blocks;
    send(REQUESTS);
    (dhat::HeapStats::get().total_blocks - before) / REQUESTS
}

#[test]
fn a_request_takes_few_pieces_of_memory() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let sender = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = sender.local_addr().expect("an address");
    std::thread::spawn(move || answer_everything(&sender));

    let text = format!(
        "[listen]\nproxy = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[zookeeper]\nconnect = \"unused:1\"\n\
         [freshness]\nmax_staleness = \"1m\"\n\
         [[route]]\npath = \"/wx/{{account}}/{{*rest}}\"\naccount = \"path:account\"\nupstream = \"http://{upstream}\"\n"
    );
    let config = config::parse("gateway.toml", &text, std::iter::empty()).expect("good");
    let memory = Memory::default();
    let account = AccountName::new("wxid_1").expect("a name");
    let seq = memory.stand(&account, SessionId(7), "host-a");
    let bound = Bound::new(&config, 1).expect("ports");
    let gateway = bound.proxy_address().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let backend = memory.clone();
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime
            .block_on(serve::run(config, backend, bound, async move { drop(stopped.await) }))
            .expect("served");
    });

    let request = |seq: u64| {
        format!(
            "POST /wx/wxid_1/text HTTP/1.1\r\nhost: gateway\r\nx-fencing-seq: {seq}\r\nx-fencing-session: 7\r\n\
             content-type: application/json\r\ncontent-length: 14\r\n\r\n{{\"text\":\"hi\"}} "
        )
    };
    let mut figures = Vec::new();
    for (what, request, status, most) in [
        ("forwarded", request(seq.0), "HTTP/1.1 200", 22),
        ("refused", request(seq.0 + 1), "HTTP/1.1 409", 22),
    ] {
        let taken = per_request(gateway, &request, status);
        println!("{what}: {taken} pieces of memory for each request");
        figures.push((what, taken, most));
    }
    for (what, taken, most) in figures {
        assert!(taken <= most, "{what}: {taken} pieces of memory for each request, at most {most} wanted");
    }
    let _ = stop.send(());
    serving.join().expect("ended");
}
