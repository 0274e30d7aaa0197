// Package nemesis breaks one thing at a time: processes, disks, files, networks, clocks, and the peace of a server with
// many clients. Each piece works alone, on any process, file or address, and returns a way to undo what it did. A piece
// decides nothing at random but by the dice that it is given, and it judges nothing: what must hold meanwhile is for the
// test to say. What a piece starts ends with its undoing, or at the latest with the process that called it.
//
// Pieces return errors rather than fail tests, so that they also serve the command in test/nemesis/cmd.
package nemesis
