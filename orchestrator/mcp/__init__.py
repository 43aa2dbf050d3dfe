"""Tools of MCP servers: `servers` finds and calls them, `connection` talks to one server."""
