"""What is searched, and by which choices: spaces, domains, options, resources, the schedulers' rules."""
