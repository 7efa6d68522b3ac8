// Package attacks tries the project's list of attacks on a real stack: two tenants, two machines and
// real containers, with the programs as they are shipped.
//
// Each attack has a number, the expected refusal and a function that tries the attack and records the result.
// TestAttacks prints one table: attack, expected, seen. make attacks runs all attacks; make test leaves out the
// long ones.
//
// The one rule to know: an attack that Berth does not refuse yet is marked as open, with the reason. The
// test also fails if an open attack is refused, so the table stays true.
package attacks
