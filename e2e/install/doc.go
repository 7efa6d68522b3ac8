// Package install holds the installation page to its word: docs/operate/install.md leads two
// empty hosts to a job by its commands alone. Run it with make proof-install.
//
// The hosts are containers of the local engine, made of Debian's packages, with systemd as
// their first process: PostgreSQL, the container engine and openssl are Debian's, and so are
// the services that the page starts. Temporal is its server program, with its own schema tool.
// The programs of Berth are built from this repository.
//
// Three things come from local copies, so that the run needs no network: the packages are
// already installed when the page asks for them, the programs of Temporal are built from their
// module, and the engine of the machine has the image of the first job.
//
// The one rule to know: the run executes the fenced blocks of the page, in their order, and no
// other command on the hosts once they have booted.
package install
