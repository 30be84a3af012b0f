//! The page for people, and all it is made of. It asks for what `/v1/` serves, and for nothing from anywhere else.

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// What a browser may do with what it gets from here.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What a file of the page is, and what is in it.
pub(super) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/" => Some((HTML, include_str!("page/page.html"))),
        "/page/page.css" => Some((CSS, include_str!("page/page.css"))),
        "/page/page.js" => Some((SCRIPT, include_str!("page/page.js"))),
        "/page/ask.js" => Some((SCRIPT, include_str!("page/ask.js"))),
        "/page/draw.js" => Some((SCRIPT, include_str!("page/draw.js"))),
        "/page/icon.svg" => Some((SVG, include_str!("page/icon.svg"))),
        _ => None,
    }
}
