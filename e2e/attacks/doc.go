// Package attacks tries the project's list of attacks on a real stack: two tenants, two machines and
// real containers, with the programs as they are shipped.
//
// Each attack has a number, the expected refusal and a function that tries the attack and tells the result.
// TestAttacks prints one table: attack, expected, seen. make attacks runs all of them; make test leaves out
// those that take long.
//
// The one rule to know: an attack that Berth does not refuse yet is marked as open, with the reason. The
// test fails if an open attack is refused, too, so that the table stays true.
package attacks
