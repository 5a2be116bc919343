//! Where parts live: ports on loopback and folders that go when they are dropped.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

/// Below the range that outgoing connections take their ports from.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// A TCP port that nobody listens on, given out once per test binary.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    for attempt in 0..500_u32 {
        let random = RandomState::new().hash_one(attempt);
        let port = PORTS.start + u16::try_from(random % u64::try_from(PORTS.len()).unwrap()).unwrap();
        let free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if free && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
    panic!("no free port in {PORTS:?}");
}

/// `127.0.0.1:port`.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A new folder that is removed with everything in it when it is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Below the system's temporary folder; `name` is only for people who look.
    pub fn new(name: &str) -> Self {
        let random = RandomState::new().hash_one(name);
        let path =
            std::env::temp_dir().join(format!("fencegate-{name}-{}-{random:016x}", std::process::id()));
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it and returns its path.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Copies a folder with all it holds; `to` must not exist.
pub fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
