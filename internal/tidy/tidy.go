// Package tidy is tests only: it checks that the code and the documents of the whole module keep the rules
// that a compiler does not know. Which package may import which, that each package says what it is for, which
// calls are kept out of production code, that links lead somewhere. It looks at direct imports: package fmt
// itself imports os, so what is imported indirectly says nothing.
//
// Each check has a table of its exceptions, each with its reason. A new exception is added there or not made.
//
// It guarantees nothing at run time, nothing imports it, and a publish never comes here.
package tidy
