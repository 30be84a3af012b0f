//! HTTP servers of other projects. Each answers with the request's own body and its field `x-marker`. Node blocks for N ms
//! on `/busy/N`. nginx and Go also listen on the Unix socket `echo.sock`.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use super::{Folder, Process, free_port, wait_until};

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Haproxy,
    Node,
    /// Python's uvicorn.
    Uvicorn,
    /// Caddy, which uses Go's own server.
    Go,
}

/// A running server; dropping this stops it.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub process: Process,
    _folder: Folder,
}

const NODE: &str = "
const http = require(process.argv[3]);
const server = http.createServer((request, response) => {
    const busy = /^\\/busy\\/(\\d+)$/.exec(request.url);
    const end = Date.now() + (busy ? Number(busy[1]) : 0);
    while (Date.now() < end);
    const parts = [];
    request.on('data', part => parts.push(part));
    request.on('error', () => {});
    request.on('end', () => {
        response.setHeader('x-marker', request.headers['x-marker'] || '');
        response.end(Buffer.concat(parts));
    });
});
server.listen(Number(process.argv[2]), '127.0.0.1');
";

const ASGI: &str = "
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    body, more = b'', True
    while more:
        message = await receive()
        if message['type'] == 'http.disconnect':
            return
        body += message.get('body', b'')
        more = message.get('more_body', False)
    marker = dict(scope['headers']).get(b'x-marker', b'')
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'x-marker', marker)]})
    await send({'type': 'http.response.body', 'body': body})
";

fn nginx(port: u16, path: &str, http2: bool) -> String {
    let http2 = if http2 { " http2" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path temporary;\n"))
        .concat();
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr;
         load_module /usr/lib/nginx/modules/ngx_http_echo_module.so;
         events {{}}
         http {{
             access_log off; keepalive_requests 1000000; client_body_buffer_size 1m;
             {temporary}
             server {{
                 listen 127.0.0.1:{port}{http2};
                 listen unix:{path}{http2};
                 location / {{
                     add_header x-marker $http_x_marker;
                     echo_read_request_body;
                     echo_request_body;
                 }}
             }}
         }}"
    )
}

fn haproxy(port: u16, http2: bool) -> String {
    let http2 = if http2 { " proto h2" } else { "" };
    format!(
        "defaults\n  mode http\n  timeout client 60s\n  option http-buffer-request\n\
         frontend echo\n  bind 127.0.0.1:{port}{http2}\n  \
         http-request return status 200 content-type text/plain hdr x-marker \"%[req.hdr(x-marker)]\" \
         lf-string \"%[req.body]\"\n"
    )
}

fn caddy(port: u16, path: &str, http2: bool) -> String {
    let protocols = if http2 { "h1 h2c" } else { "h1" };
    format!(
        "{{\n admin off\n auto_https off\n servers {{\n protocols {protocols}\n }}\n}}\n\
         http://:{port} {{\n bind 127.0.0.1 unix/{path}\n header x-marker {{http.request.header.x-marker}}\n \
         respond \"{{http.request.body}}\"\n}}\n"
    )
}

impl Server {
    /// Starts a server for HTTP/1.1, or for HTTP/2 with prior knowledge.
    pub fn start(kind: Kind, http2: bool) -> Self {
        Self::start_in(Folder::new(), kind, http2)
    }

    /// Starts a server whose files are in `folder`.
    pub fn start_in(folder: Folder, kind: Kind, http2: bool) -> Self {
        let port = free_port();
        let (number, path) = (port.to_string(), folder.path().join("echo.sock"));
        let path = path.to_str().unwrap();
        let arguments = match kind {
            Kind::Nginx => {
                folder.write("nginx.conf", nginx(port, path, http2));
                vec!["nginx", "-e", "stderr", "-p", ".", "-c", "nginx.conf"]
            }
            Kind::Haproxy => {
                folder.write("haproxy.cfg", haproxy(port, http2));
                vec!["haproxy", "-db", "-f", "haproxy.cfg"]
            }
            Kind::Node => {
                folder.write("echo.js", NODE);
                vec!["node", "echo.js", &number, if http2 { "http2" } else { "http" }]
            }
            Kind::Uvicorn => {
                assert!(!http2, "uvicorn does not speak HTTP/2");
                folder.write("echo.py", ASGI);
                vec![python_with("uvicorn"), "-m", "uvicorn", "--log-level", "error", "--port", &number, "echo:app"]
            }
            Kind::Go => {
                folder.write("Caddyfile", caddy(port, path, http2));
                vec!["XDG_DATA_HOME=.", "XDG_CONFIG_HOME=.", "caddy", "run", "--config", "Caddyfile"]
            }
        };
        // Some programs are in a directory that is not on a normal user's path.
        let programs = format!("PATH={}:/usr/sbin", std::env::var("PATH").unwrap());
        let process = Process::program("env", &[&[programs.as_str()], &arguments[..]].concat(), folder.path());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        wait_until(&format!("{kind:?} to listen"), || TcpStream::connect(address).is_ok());
        Self { address, process, _folder: folder }
    }

    /// The server as a node in a configuration.
    pub fn node(&self) -> String {
        format!("\"{}\"", self.address)
    }
}

/// A Python with this module: the first on the path may be another one than the system's.
pub fn python_with(module: &str) -> &'static str {
    let has_module = |python: &&str| {
        let tried = Command::new(python).args(["-c", &format!("import {module}")]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_module);
    found.unwrap_or_else(|| panic!("no python3 has {module}; `make needs` installs it"))
}
