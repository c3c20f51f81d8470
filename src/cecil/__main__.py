from cecil.cli import main

main()
