// Command berth is the command line of Berth, for users and operators: it
// submits jobs, shows their state and their logs, and manages machines and
// tokens. docs/reference/cli.md lists every command.
//
// The command line speaks only HTTP, through api/client. Package internal/lib/jobfile
// decodes job files here, so that faults are shown with line and column before the
// submit; the server validates everything again.
//
// Results go to standard output, in the format of -o; messages go to standard
// error. Exit codes are one table, in exit.go. Every command prints its result through
// app.show and reports errors of calls through app.failed, so that all commands share
// their formats and their exit codes.
//
// The one rule to know: only main.go reads the environment and the terminal.
// Commands receive both as values, so that tests can pass their own.
package main
