// Demo trains the digits on a running berth-dev, takes the machine away in the
// middle, and asserts that the job goes on elsewhere from its verified
// checkpoint. scripts/demo.sh starts the stack and then this program.
package main
