"""What a project is made of: roles, scenarios and tool files; finding, loading and checking them."""
