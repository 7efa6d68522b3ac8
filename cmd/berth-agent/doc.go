// Command berth-agent runs on every machine: it joins it to a Berth control
// plane, runs the containers that are placed there, and reports.
//
// Settings are flags, or environment variables of the same names
// (BERTH_STATE_DIR for --state-dir). It prints them once, without secrets.
package main
