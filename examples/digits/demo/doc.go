// Demo trains the digits on a running berth-dev, takes the machine away in the
// middle, and asserts that the job goes on elsewhere from its verified
// checkpoint. scripts/demo.sh starts the stack and then this program.
//
// With -cloud the machine is one of a cloud, which Berth launches for the job by
// a burst policy, and which the cloud takes back: see scripts/demo-cloud.sh.
package main
