"""An HTTP server that asks nobody for the name of its own address, as that of the library does."""

from http.server import ThreadingHTTPServer
from socketserver import TCPServer


class HttpServer(ThreadingHTTPServer):
    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
