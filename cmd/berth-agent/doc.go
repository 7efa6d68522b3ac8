// Command berth-agent is the agent of one machine. It joins the machine to a Berth
// control plane, runs the containers that are placed on the machine, and reports
// their progress and their ends.
//
// Settings are flags, or environment variables of the same names
// (BERTH_STATE_DIR for --state-dir). The agent logs its settings once at the start,
// without secrets.
package main
