//! The stand-in: see `Cargo.toml`.

/// The one name that pingora-core uses outside its tests.
pub mod io {
    /// A connection that nobody can make.
    #[derive(Debug)]
    pub enum Mock {}
}
