// Package deadman is the fence of at_most_one work: a process apart from the
// agent that ends the containers of such work once the control plane has not
// heard from this machine for too long. It needs neither the agent nor the container
// engine, and shares no code with either: it reads one file and signals processes.
//
// The agent writes the lease file with the time at which the last sync accepted by
// the control plane was sent, the fence time, and the members. Time is
// CLOCK_BOOTTIME, which cannot be set and which goes on while the machine sleeps. With
//
//	age = now - sent        fence = the lease's fence time        grace = the member's
//
// the process is, at each beat, in one of these states:
//
//	state     when                                      does to each member listed
//	--------  ----------------------------------------  --------------------------------
//	idle      no lease, none listed, or another boot's  nothing
//	watching  age < fence                               nothing
//	stopping  fence <= age < fence + grace              closes its gate; SIGTERM, once
//	killing   fence + grace <= age                      closes its gate; SIGKILL, each beat
//	gone      the folder itself was removed             SIGKILL, then the process ends
//
// Each beat judges the state again, so killing goes on until a fresh lease arrives,
// and a container that an engine starts late dies within a beat. The states of
// members differ only by the members' grace. Further cases:
//
//	the lease file is damaged or missing   the last good one counts, and ages
//	the lease was sent in the future       damaged: no agent can have written it
//	the lease is of another boot           none of its containers can live
//	this process dies                      the next one reads the file and goes on
//	this process cannot write its pulse    it goes on; the agent takes no such work
//
// A member's gate is a folder that its container mounts. Once the folder is renamed,
// no engine can start the container, even by a start already under way; and the
// renamed folder stays as a record. A member's processes have a cgroup named after
// the container's id, of 64 digits, so a process that reuses a process id never
// counts as a member's. See Processes.
//
// The control plane gives the work to another machine no sooner than fence +
// grace + berth.FenceMargin after the last sync from this one. It counts from the
// arrival of that sync, and the lease from its sending: so the lease ends first.
package deadman
