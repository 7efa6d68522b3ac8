// Package notice reads the notices by which a cloud announces that it ends this machine, or advises to move
// work away.
// The agent asks a Reader each second for the present notices of the cloud.
//
//	source   end of the machine                        advice
//	-------  ----------------------------------------  ------------------------------------------
//	ec2      latest/meta-data/spot/instance-action     latest/meta-data/events/recommendations/rebalance
//	gce      instance/preempted, maintenance-event     none
//	file     a JSON document at a path                 none
//
// The answers come from outside of Berth: they are bounded in size and time, and an answer that is not
// exactly as documented is ErrMalformed and never a notice.
//
// The main rule: an error is no information about the machine's end. Only an answer without a notice
// withdraws a notice that was shown before.
package notice
