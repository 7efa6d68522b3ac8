// Package chaos kills Berth's processes at every named failpoint and checks the jobs afterwards.
// It runs berthd in several processes, one role or two each and every role twice, agents over
// private Docker engines, PostgreSQL and Temporal, the last two behind proxies.
//
// A cell is a process, a failpoint and a downtime: the failpoint is armed, jobs are driven
// through until it is hit, the process dies at that point, is started again after the downtime,
// and the cell's job must end as if nothing had happened: in the same attempt unless its machine
// was silent beyond lost_after. A failpoint that only a pipeline, a gang, an array or a schedule
// can hit gets a cell with such a job. Jobs that must not lose their machine have a lost_after
// that no slow test run reaches; a job that ends without hitting the failpoint is followed by
// another. At the end of all cells every job is terminal, nothing is reserved, no container is
// left, no container was created or started twice, no machine of the cloud is left or was created
// twice, and a further pass of the reconciler writes nothing.
//
// The cloud is a file (package internal/control/cloud/faultcloud). berthd runs the program e2e/faultcloud for each
// call; a fifth of the creates take effect and then fail, and new instances are listed late.
//
// The proof of launches has a stack of its own, without engines: the scaler launches machines for jobs that wait
// while workers and leaders are killed at every failpoint of that path. The delays of launches are a tenth of
// the delays in production. make proof-launches launches 1,000 machines.
//
// It has no code but tests. go test runs a fixed set of cells, and checks that the set is large
// enough; make chaos has further ones, and adds a soak, an overload and random cells for as long
// as -budget allows. The printed seed replays the choices.
//
// A cell fails in one of two ways. A broken promise is a breach and fails the run at once. A cell
// that reached the limit of a wait, or whose job was over before it was struck, was only slow.
// Its own jobs must still end, and it is repeated alone after all others; it fails if it is slow
// again.
//
// A Docker engine that hangs is killed and started again. The cells that fail because of the hang
// count as slow. Docker 20.10 has such a fault (see tend).
//
// The one rule to know: a cell waits for conditions, never for times, because machines that run
// tests are busy; only downtimes are slept.
package chaos
