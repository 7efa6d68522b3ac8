// Package checklists holds the example changes of the pages in docs/checklists, as
// patches. Its tests apply each patch to copies of the files, count the files of the
// change, compile the changed packages and run the tests that the patch names.
//
// The one rule to know: a page promises how many files its change touches, and that
// number may only fall.
package checklists
