// Package db holds every SQL statement of Berth, hand-written over pgx: one
// statement a decision with its guard in WHERE, lists as unnest, writes that
// belong together in one transaction.
//
// It never decides policy (placement and the root package do) and never talks
// to Temporal or a machine.
//
// The one rule to know is the lock order, everywhere: leases, schedules, jobs, allocations by
// id, machines by id, gpu_devices by machine and index, machine_caches and machine_leases by
// machine id, earmarks, uploads by tenant and address, secrets, tenants by id.
//
// Of jobs, first pipelines and arrays by id, and then the other ones by id: a parent comes
// before its elements, also where its id is the higher one.
//
// Rows are locked with SELECT ... ORDER BY ... FOR NO KEY UPDATE before they are written. One
// query out of order is no error, only a hundredfold slowdown and deadlocks.
package db
